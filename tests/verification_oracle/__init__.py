"""Verification judged by a plain run of the original model in another process, which shares no code with it.

python -m tests.verification_oracle [COUNT]      all models, COUNT corrupted graphs of each (default 3)
"""
