"""Stored facts about captured graphs: digest, size, strategy, warnings, result; `python -m tests.captures --help`.

The rows are in `tests/data/captures/`, one file for each family of models. They are those of the versions in
constraints.txt: other versions of torch and transformers record other operators.
"""
