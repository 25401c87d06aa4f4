"""Verification judged by a plain run of the original model in another process, without shared code.

python -m tests.verification_oracle [COUNT]      all models, COUNT corrupted graphs of each (default 3)
"""
