"""Models of many kinds: which are exact on towers, and which are not."""

from tests.coupling.zoo import contrasted, gradients, normalised, sequences, state, weighed
from tests.coupling.zoo.parts import ZOO, Case, case

__all__ = ['ZOO', 'Case', 'case', 'contrasted', 'gradients', 'normalised', 'sequences', 'state',
           'weighed']
