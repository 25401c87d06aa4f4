"""Models drawn at random from many blocks, whose graphs must be bit-identical to the model."""

from tests.random_models import arithmetic, attention, layers, shapes, state, structure  # noqa: F401  they fill the table
from tests.random_models.block import BLOCKS
from tests.random_models.model import Built, built
from tests.random_models.properties import Verdict, judged
from tests.random_models.recipe import Recipe, drawn
from tests.random_models.shrinking import reproduction, shrunk

__all__ = ["BLOCKS", "Built", "Recipe", "Verdict", "built", "drawn", "judged", "reproduction", "shrunk"]
