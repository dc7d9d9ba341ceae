"""Models of many kinds: which are exact on towers, and which are not."""

from tests.checks.zoo import contrasted, gradients, normalised, sequences, state, weighed
from tests.checks.zoo.parts import ZOO, Case, case

__all__ = ['ZOO', 'Case', 'case', 'contrasted', 'gradients', 'normalised', 'sequences', 'state',
           'weighed']
