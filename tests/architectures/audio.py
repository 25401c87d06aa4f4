"""Models that read waves or spectrograms."""

from .sizes import Row

WAVE = {"conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3]}
STABLE_WAVE = {**WAVE, "feat_extract_norm": "layer", "do_stable_layer_norm": True}
SPEECH_TO_TEXT = {"input_feat_per_channel": 16, "conv_channels": 24, "conv_kernel_sizes": [3, 3]}
MOONSHINE = {"encoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4}
CODEC = {"num_filters": 4, "upsampling_ratios": [4, 2], "codebook_size": 16, "codebook_dim": 32}
DAC = {
    "encoder_hidden_size": 8,
    "decoder_hidden_size": 32,
    "downsampling_ratios": [2, 4],
    "n_codebooks": 2,
    "codebook_size": 16,
}
MIMI = {
    "num_filters": 4,
    "upsampling_ratios": [4, 2],
    "codebook_size": 16,
    "codebook_dim": 16,
    "num_quantizers": 3,
    "vector_quantization_hidden_dimension": 16,
    "upsample_groups": 32,
    "sliding_window": 8,
}
SPEECHT5 = {
    "speech_decoder_prenet_units": 16,
    "speech_decoder_postnet_units": 16,
    "speaker_embedding_dim": 8,
    "speech_decoder_prenet_dropout": 0.0,
}
FASTSPEECH = {
    "encoder_num_attention_heads": 2,
    "encoder_linear_units": 48,
    "decoder_linear_units": 48,
    "speech_decoder_postnet_units": 16,
    "duration_predictor_channels": 16,
    "energy_predictor_channels": 16,
    "pitch_predictor_channels": 16,
}
UNIVNET = {"model_in_channels": 8, "model_hidden_channels": 8, "kernel_predictor_hidden_channels": 8}

AUDIO: list[Row] = [
    ("wav2vec2", "Wav2Vec2ForCTC", WAVE, "wave"),
    ("wav2vec2_layer_norm", "Wav2Vec2Model", STABLE_WAVE, "wave"),
    ("wav2vec2_conformer", "Wav2Vec2ConformerForCTC", WAVE, "wave"),
    ("wav2vec2_bert", "Wav2Vec2BertForCTC", {"feature_projection_input_dim": 16}, "frames"),
    ("data2vec_audio", "Data2VecAudioForCTC", WAVE, "wave"),
    ("hubert", "HubertForCTC", WAVE, "wave"),
    ("wavlm", "WavLMForCTC", {**WAVE, "num_buckets": 16, "max_bucket_distance": 32}, "wave"),
    ("unispeech", "UniSpeechForCTC", {**WAVE, "num_ctc_classes": 20}, "wave"),
    ("unispeech_sat", "UniSpeechSatForCTC", WAVE, "wave"),
    ("sew", "SEWForCTC", WAVE, "wave"),
    ("sew_d", "SEWDForCTC", {**WAVE, "position_buckets": 16, "max_position_embeddings": 64}, "wave"),
    ("whisper", "WhisperForConditionalGeneration", {}, "mel to text"),
    ("speech_to_text", "Speech2TextForConditionalGeneration", SPEECH_TO_TEXT, "frames to text"),
    ("moonshine", "MoonshineForConditionalGeneration", MOONSHINE, "long wave to text"),
    ("ast", "ASTForAudioClassification", {"patch_size": 8, "max_length": 24}, "spectrogram"),
    ("parakeet_encoder", "ParakeetEncoder", {"subsampling_conv_channels": 8}, "frames"),
    ("encodec", "EncodecModel", CODEC, "mono wave"),
    ("dac", "DacModel", DAC, "mono wave"),
    ("mimi", "MimiModel", MIMI, "mono wave"),
    ("speecht5", "SpeechT5ForTextToSpeech", SPEECHT5, "text to frames"),
    ("fastspeech2_conformer", "FastSpeech2ConformerModel", FASTSPEECH, "text"),
    ("univnet", "UnivNetModel", UNIVNET, "frames and noise"),
]
