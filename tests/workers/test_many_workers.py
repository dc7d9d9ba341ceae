"""What one worker costs the chief is the same among a thousand as among a few."""

import resource

import pytest

from tests.harness.many_workers import find_need, measure

pytestmark = pytest.mark.plain
MOST = 1.5  # Times the cost of a worker among few.


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize('few, many', [(16, 64), (64, 1024)])
@pytest.mark.timeout(600)
def test_a_worker_among_many_costs_the_chief_what_it_costs_among_few(few, many):
  if find_need(many):
    pytest.skip(find_need(many))
  costs = {}
  for num_workers in (few, many):
    found = measure(num_workers)
    # The lost one is named to each of the others, once, and each names it.
    assert found['named'] == found['loss']['named'] == num_workers - 2
    assert found['gap'] < 10  # Half of worker_seconds.
    totals = {name: found['meet'][name] + found['share'][name] + found['text'][name]
              for name in ('sent', 'received')}
    costs[num_workers] = {name: value / num_workers for name, value in dict(
        totals, memory=found['memory'], share=found['share']['sent'],
        signs=found['signs']['signs_sent']).items()}
  for name, cost in costs[many].items():
    assert cost <= MOST * costs[few][name], (name, costs)


def test_a_limit_of_open_files_is_told_with_both_numbers(monkeypatch):
  monkeypatch.setattr(resource, 'getrlimit', lambda _: (256, 512))
  with pytest.raises(OSError, match='1024 workers need 1056 open files, and this process may have '
                     '512'):
    measure(1024)
