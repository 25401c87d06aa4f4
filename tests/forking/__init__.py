"""Programs that start in milliseconds: a fork server with torch imported forks a child for each of them.

For tests whose subject is what a program does, and not how it starts: `torch-ir`, scripts, `torchrun`, a page of the
documentation, the verification of architectures. They are ordinary programs to whoever starts them: streams, terminals,
folder, environment, signals and status are theirs. `pytest --run-slow` and `python tests/documents.py --fresh` do
without.
"""

from tests.forking.programs import FRESH, forked_programs

__all__ = ["FRESH", "forked_programs"]
