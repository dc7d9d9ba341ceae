"""A run resumes only with steps of the size that it had."""

import pytest

from towers import build_plan
from towers.base.usage_error import UsageError
from towers.training.saving.resume import check_resume

# Steps of 8 and of 5 examples.
_PLAN = build_plan(num_examples=13, batch_size=8, num_towers=2)


def test_a_checkpoint_of_other_batches_is_refused():
  check_resume('folder/model.ckpt-3', step=3, examples_seen=21, plan=_PLAN)
  with pytest.raises(UsageError, match='has seen 24 examples in 3 steps.*batch_size=8 they would '
                                       'be 21'):
    check_resume('folder/model.ckpt-3', step=3, examples_seen=24, plan=_PLAN)


def test_a_checkpoint_may_have_seen_fewer_examples_where_damaged_ones_are_skipped():
  for examples_seen in (21, 20, 19):
    check_resume('checkpoint', step=3, examples_seen=examples_seen, plan=_PLAN, may_skip=True)
  for examples_seen in (22, 18, 0):
    with pytest.raises(UsageError, match=f'has seen {examples_seen} examples'):
      check_resume('checkpoint', step=3, examples_seen=examples_seen, plan=_PLAN, may_skip=True)
  with pytest.raises(UsageError, match='resume with on_bad_record=skip'):
    check_resume('checkpoint', step=3, examples_seen=20, plan=_PLAN)
