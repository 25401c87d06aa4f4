"""Compiled language models: prefill and decode over one cache in place, with the choice of tokens on the device."""
