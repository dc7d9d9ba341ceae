"""The report: it draws what was measured, also after a kill, in a page that loads nothing."""

import contextlib
import html.parser
import json
import re
import xml.etree.ElementTree

import pytest

import main
import towers
from tests.harness import faults
from tests.harness.processes import output_of
from tests.harness.small import CURVES, Killed, killing, program
from tests.training.reporting import test_summaries
from towers import extras
from towers.base.usage_error import UsageError
from towers_tools import report
from towers_tools.chart import Curve, draw_chart, find_ticks
from towers_tools.page import format_page, read_runs


class Page(html.parser.HTMLParser):
  """The open tags, and the addresses from which a page would load something."""

  def __init__(self, text):
    super().__init__()
    self.open, self.outside = [], []
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    if tag != 'meta':
      self.open.append(tag)
    self.outside += [value for name, value in attributes if name in ('src', 'href')]

  def handle_startendtag(self, tag, attributes):
    pass  # Drawings close their own tags.

  def handle_endtag(self, tag):
    assert self.open.pop() == tag


def check_page(path):
  """Returns the page's text after checks that it is well formed and loads nothing."""
  text = path.read_text(encoding='utf-8')
  page = Page(text)
  assert page.open == [] and page.outside == []
  assert '//' not in re.sub(r'<!DOCTYPE|xmlns="[^"]*"', '', text)
  for drawing in re.findall(r'<svg.*?</svg>', text, re.DOTALL):
    xml.etree.ElementTree.fromstring(drawing)
  return text


def untimed(points):
  timed = ('examples_per_second', 'input_wait')
  return [{name: value for name, value in point.items() if name not in timed} for point in points]


def train(page, settings=(), **run):
  towers.train(program(**dict(settings)), report=str(page), **dict(CURVES, **run))


@pytest.mark.nightly(but='4-next-True')
@pytest.mark.parametrize('num_towers, mode, aside', [
    (1, 'split', False), (3, 'shard', False), (4, 'next', True)])
def test_the_page_holds_what_was_measured(tmp_path, num_towers, mode, aside):
  train(tmp_path / 'run.html', summary_dir=str(tmp_path / 'curves'), settings=dict(
      num_towers=num_towers, input_mode=mode, validation_tower=aside))
  text = check_page(tmp_path / 'run.html')
  [found] = read_runs(str(tmp_path / 'run.html'))
  drawn = {}
  for tag, step, value in test_summaries.read(tmp_path / 'curves'):
    drawn.setdefault(tag, []).append((step, pytest.approx(value, rel=1e-6)))
  for kind in ('train', 'validation'):
    points = found['samples' if kind == 'train' else 'validations']
    for name in set(points[0]) - {'step'}:
      assert [(point['step'], point[name]) for point in points
              if point[name] is not None] == drawn[f'{kind}/{name}']
  assert [point['step'] for point in found['samples']] == [3, 6, 9, 12]
  assert found['validations'][-1]['step'] == 12
  assert re.findall(r'<figcaption>([^<]*) <', text) == [
      'loss', 'accuracy', 'examples per second', 'share of time that waits for input',
      'learning rate', 'gradient norm']


@pytest.mark.nightly
@pytest.mark.parametrize('kill_after', [6, 4, 10])
def test_a_killed_run_resumes_its_page(tmp_path, kill_after):
  train(tmp_path / 'whole.html', checkpoint_dir=str(tmp_path / 'whole'))
  parts = dict(page=tmp_path / 'parts.html', checkpoint_dir=str(tmp_path / 'parts'))

  def write_no_more(step, loss):
    if step == kill_after:
      patch.setattr(report, 'write_whole', lambda *_: None)

  with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
    train(callbacks=[write_no_more, killing(kill_after)], **parts)
  train(**parts)
  [whole] = read_runs(str(tmp_path / 'whole.html'))
  [parts] = read_runs(str(tmp_path / 'parts.html'))
  assert parts['validations'] == whole['validations']
  # Each validation writes the page. The samples between the last one and the checkpoint are lost.
  written, missing = (kill_after - 1) // 5 * 5, (kill_after - 1) // 4 * 4
  assert untimed(parts['samples']) == [
      point for point in untimed(whole['samples']) if not written < point['step'] <= missing]


@pytest.mark.nightly
def test_an_unwritable_page_is_a_warning_and_a_foreign_one_is_replaced(tmp_path, capsys):
  with contextlib.ExitStack() as disk:
    train(tmp_path / 'run.html', callbacks=[
        lambda step, loss: disk.enter_context(faults.full_disk()) if step == 1 else None])
  shown = capsys.readouterr().out
  assert shown.count(f"report {tmp_path / 'run.html'} cannot be written") == 1
  assert 'done: 12 steps' in shown
  assert list(tmp_path.iterdir()) == []
  towers.train(program(), checkpoint_dir=str(tmp_path / 'saved'), steps=6, quiet=True)
  (tmp_path / 'run.html').write_text('something else')
  train(tmp_path / 'run.html', checkpoint_dir=str(tmp_path / 'saved'))
  assert ('is not a page that --report wrote, so its curves start at step 6' in
          capsys.readouterr().out)
  assert [point['step'] for point in read_runs(str(tmp_path / 'run.html'))[0]['samples']] == [9, 12]
  page = (tmp_path / 'run.html').read_text()
  (tmp_path / 'run.html').write_text(page.replace('"step": 9', '"step": 8'))
  with pytest.raises(UsageError, match='its checksum is wrong'):
    read_runs(str(tmp_path / 'run.html'))


def test_many_samples_are_thinned(tmp_path, monkeypatch):
  monkeypatch.setattr(report, '_MOST_SAMPLES', 5)
  train(tmp_path / 'run.html', summary_every='1steps')
  steps = [point['step'] for point in read_runs(str(tmp_path / 'run.html'))[0]['samples']]
  assert len(steps) <= 5 and steps[-1] == 12 and steps == sorted(steps)


def a_run(**changes):
  run = dict(
      config=dict(model='linear', data='sample', seed=0), description='', versions={}, warnings=[],
      seconds={}, samples=[dict(step=step, loss=1.0 / step) for step in (1, 2, 3)],
      validations=[dict(step=3, loss=0.5, accuracy=0.75)], result=None)
  return dict(run, **changes)


# Runs are compared where there is no TensorFlow too.
COMPARE = ('import sys, tests; sys.modules["tensorflow"] = None; '
           'from towers_tools.page import main; sys.exit(main(sys.argv[1:]))')


def test_runs_stand_side_by_side_and_what_differs_is_bold(tmp_path):
  other = a_run(config=dict(model='linear', data='sample', seed=1),
                warnings=['</script><script>alert(1)</script>'])
  pages = [tmp_path / 'a.html', tmp_path / 'b.html']
  for page, run in zip(pages, (a_run(), other)):
    page.write_text(format_page([page.stem], [run]))
    assert '<h1>linear on sample</h1>' in check_page(page)
  output_of('-c', COMPARE, *map(str, pages), f"--output={tmp_path / 'both.html'}")
  text = check_page(tmp_path / 'both.html')
  assert read_runs(str(tmp_path / 'both.html')) == [a_run(), other] and '<h1>a and b</h1>' in text
  assert '<tr class="differs"><td>seed</td><td>0</td><td>1</td></tr>' in text
  assert '<tr><td>model</td><td>linear</td><td>linear</td></tr>' in text
  loss = re.search(r'<figcaption>loss.*?</figure>', text).group(0)
  assert loss.count('<polyline') == 4 and 'training of a' in loss and 'validation of b' in loss
  assert text.count('<script') == 2 and '&lt;script&gt;' in text


@pytest.mark.parametrize('arguments, word', [
    (['nothing.html'], 'nothing.html cannot be read'),
    (['strange.html'], 'strange.html is not a page'),
    (['a.html', '--output=/sys/nowhere/page.html'], '/sys/nowhere/page.html cannot be written'),
    (['gs://bucket/a.html'], 'pages=gs://bucket/a.html names another file system'),
    (['a.html', '--output=gs://bucket/b.html'],
     'output=gs://bucket/b.html names another file system')])
def test_mistakes_are_named(tmp_path, monkeypatch, capsys, arguments, word):
  monkeypatch.chdir(str(tmp_path))
  (tmp_path / 'strange.html').write_text('<html></html>')
  (tmp_path / 'a.html').write_text(format_page(['a'], [a_run()]))
  assert extras.run('python -m towers report', ['--output=page.html'] + arguments) == 2
  assert word in capsys.readouterr().err


def test_the_page_of_main_has_its_result(tmp_path, capsys):
  assert main.main([
      'main.py', '--model=linear', '--batch_size=400', '--steps=4', '--device=cpu',
      '--summary_every=1', f"--report={tmp_path / 'run.html'}",
      f"--result_file={tmp_path / 'result.json'}"]) == 0
  [run] = read_runs(str(tmp_path / 'run.html'))
  assert run['result'] == json.loads((tmp_path / 'result.json').read_text())
  assert list(run['seconds']) == [
      'packages and files', 'graph', 'variables', 'first step', 'training',
      'validation, checkpoints']
  assert run['config']['steps'] == 4
  assert {'TensorFlow', 'host', 'date', 'command'} <= set(run['versions'])
  assert '/device:CPU:1' in run['description']
  assert len(run['samples']) == 4 and 'learning rate' in check_page(tmp_path / 'run.html')
  assert main.main(['main.py', '--report=/sys/nowhere/run.html']) == 2
  assert 'report=/sys/nowhere/run.html' in capsys.readouterr().err


@pytest.mark.parametrize('least, most', [
    (0, 1), (0.759, 0.781), (0, 126), (3, 3), (1e-5, 4e-5), (-2, 1e6)])
def test_ticks_are_round_few_and_around_the_values(least, most):
  ticks = find_ticks(least, most, 4)
  assert 1 <= len(ticks) <= 7 and ticks[0] <= least + 1e-12 and ticks[-1] >= most - 1e-12


def test_a_chart_draws_what_is_higher_higher_within_its_frame():
  figure = draw_chart('loss', [Curve('a', [(0, 2.0), (10, float('nan')), (20, 0.5)], 0),
                               Curve('b', [(7, 1.0)], 1, has_dots=True)])
  [line, _] = re.findall(r'points="([^"]*)"', figure)
  (left, high), (right, low) = [tuple(map(float, point.split(','))) for point in line.split(' ')]
  [dot] = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', figure)
  across, middle = map(float, dot)
  assert 0 < left < across < right < 560 and 0 < high < middle < low < 210
  assert across - left == pytest.approx((right - left) * 7 / 20, abs=0.2)
  assert draw_chart('nothing', [Curve('a', [(1, float('nan'))], 0)]) == ''
