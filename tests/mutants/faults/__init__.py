"""The mutants: faults that a person might make, one line each, and the fast tests that see them."""

from typing import List

from tests.mutants.faults import (
  data,
  exposure,
  gpus,
  inputs,
  models,
  network,
  reduction,
  towers,
  training,
  updates,
)
from tests.mutants.mutant import Mutant

MUTANTS: List[Mutant] = [
    *data.MUTANTS, *inputs.MUTANTS, *models.MUTANTS, *towers.MUTANTS, *reduction.MUTANTS,
    *updates.MUTANTS, *training.MUTANTS, *gpus.MUTANTS, *exposure.MUTANTS,
    *network.MUTANTS]
