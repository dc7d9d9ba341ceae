"""Input: both pipelines read the same files, and a line has the figures of each."""

import pytest

from benchmarks import input as benchmark
from tests.data.pictures import jpegs, write_tfrecords


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('photos')
  images = jpegs(4, benchmark.HEIGHT, benchmark.WIDTH) * 40
  for split in ('train', 'validation'):
    write_tfrecords(folder, split, [range(80), range(80, 160)], images)
  return str(folder)


@pytest.mark.nightly
@pytest.mark.parametrize('what, mode', [
    ('input', 'split'), ('model', 'next')])
def test_a_line_stands_beside_the_bare_pipeline(folder, what, mode):
  line = benchmark.measure(what, 'tfrecord', folder, mode, num_towers=2, seconds=0.2).split()
  assert line[:4] == ['tfrecord', what, mode, '2'] and len(line) == 12
  rate, bare_rate, of_bare, cost, bare_cost, costs_of_bare = (
      float(word.replace(',', '')) for word in line[4:10])
  assert of_bare == pytest.approx(rate / bare_rate, abs=0.02) and rate > 0
  assert costs_of_bare == pytest.approx(bare_cost / cost, abs=0.02) and cost > 0


@pytest.mark.nightly
def test_a_resume_is_timed_at_the_beginning_the_middle_and_the_end(folder, capsys):
  benchmark.measure_resume('tfrecord', folder)
  first, _, *lines = capsys.readouterr().out.splitlines()
  assert first.startswith('160 examples')
  assert [line.split()[:3] for line in lines] == [[step, 'of', '3'] for step in '011']
  assert all(float(word) > 0 for line in lines for word in line.split()[3:])
