"""One tower beside two: the table, and refused flags. The test of docs/speed.md runs the command.
"""

import json

import pytest

from benchmarks import mnist

CONTENT = dict(
    net='lenet', data='sample', steps=30, versions={'TensorFlow': '1.14.0'}, disagreements=[],
    seconds={'towers': {1: [1.0, 2.0, 3.0], 2: [1.0, 1.0, 1.5]}, 'mirrored': {1: [1.0], 2: [2.0]}})


def test_the_table_adds_seconds_up_and_calls_data_by_its_name():
  for content in (CONTENT, json.loads(json.dumps(CONTENT))):
    title, _, ours, mirrored, published = mnist.format_table(content).splitlines()
    assert title == ('lenet on 4,000 images of Fashion-MNIST, 30 steps of 100 examples, TensorFlow '
                     '1.14.0')
    assert ' '.join(ours.split()) == 'towers 6.0 s 3.5 s 0.50 (0.50 to 0.75)'
    assert ' '.join(mirrored.split()) == 'mirrored 1.0 s 2.0 s 2.00 (2.00 to 2.00)'
    assert ' '.join(published.split()).startswith('published 68.0 s 90.6 s 1.33,')
  assert mnist.format_table(dict(CONTENT, disagreements=['mirrored: ...'])).endswith(
      'DISAGREES: mirrored: ...')


@pytest.mark.parametrize('flags, what', [
    (['--steps=5', '--rounds=6'], 'each round needs a step'), (['--rounds=0'], 'at least 1'),
    (['--data=mnist'], 'needs a --data_dir'), (['--data=cifar10'], 'invalid choice')])
def test_flags_that_cannot_be_are_refused(flags, what, capsys, monkeypatch):
  monkeypatch.setattr(mnist, 'list_cores', lambda: [0, 1])
  with pytest.raises(SystemExit):
    mnist.main(flags)
  assert what in capsys.readouterr().err


def test_two_towers_need_two_cores(capsys, monkeypatch):
  monkeypatch.setattr(mnist, 'list_cores', lambda: [0])
  with pytest.raises(SystemExit):
    mnist.main([])
  assert '1 core' in capsys.readouterr().err
