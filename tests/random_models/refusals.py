"""Known reasons why a model is refused, recognised by the text of the message, each with its justification."""

from __future__ import annotations

# words of the message -> why torch.export cannot do it either
REASONS = {
    "a size cannot vary as asked": "the number of operators depends on the size: a loop over it, a split of it",
    "Python needs a number that depends on the data": "BatchNorm without a momentum divides by its count in Python",
    "Cannot create Dim with inconsistent": "likewise; torch fails while it proposes another range",
}


def reason_of(message: str) -> str:
    """Return the words by which a refusal is recognised."""
    return next((words for words in REASONS if words in message), message)
