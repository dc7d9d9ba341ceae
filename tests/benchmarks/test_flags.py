"""Every benchmark refuses bad values of flags in a sentence, before it measures."""

import importlib
import sys

import pytest

from benchmarks import step
from benchmarks.harness.flags import at_least, one_of, path_to_write, program, several


def test_good_values_are_read(tmp_path):
  assert several(at_least(1))('1,20') == [1, 20]
  assert at_least(0, float)('0.5') == 0.5 and isinstance(at_least(0)('0'), int)
  assert several(one_of(['by hand', 'towers']))('by hand,towers') == ['by hand', 'towers']
  path = tmp_path / 'figures.json'
  assert path_to_write(str(path)) == str(path)
  path.write_text('{}')
  assert path_to_write(str(path)) == str(path)
  assert program(sys.executable) == sys.executable and program('sh') == 'sh'


@pytest.mark.parametrize('flag, what', [
    ('--models=nothing', "argument --models: there is no 'nothing'; choose from linear"),
    ('--kinds=towers,horovod', "--kinds: there is no 'horovod'"),
    ('--kinds=by hand', "without 'towers'"),
    ('--towers=two', "'two' is not an integer"),
    ('--towers=2,0', '0 is too small: it must be at least 1'),
    ('--towers=', "'' is not an integer"),
    ('--rounds=0', 'at least 1'),
    ('--setups=0', 'at least 1'),
    ('--batch_size=-1', 'at least 1'),
    ('--seconds=nan', 'at least 0'),
    ('--seconds=soon', "'soon' is not a number"),
    ('--json=/nowhere/figures.json', 'there is no folder /nowhere'),
    ('--json=/', '/ cannot be written'),
    ('--pythons=/nowhere/python', 'there is no program /nowhere/python'),
    ('--show=/nowhere', 'there is no /nowhere')])
def test_bad_values_are_refused(flag, what, capsys):
  with pytest.raises(SystemExit) as error:
    step.main([flag])
  assert error.value.code == 2
  assert what in capsys.readouterr().err


@pytest.mark.parametrize('content', ['', '{}', '[1]', '{"lines": []}'])
def test_files_that_no_benchmark_wrote_are_not_shown(content, tmp_path, capsys):
  path = tmp_path / 'figures.json'
  path.write_text(content)
  with pytest.raises(SystemExit):
    step.main([f'--show={path}'])
  assert f'--show={path}: --json did not write this file' in capsys.readouterr().err


@pytest.mark.parametrize('name, flag, what', [
    ('batch_sweep', '--model=nothing', 'alexnet_cifar'),
    ('batch_sweep', '--batch_sizes=256,x', 'not an integer'),
    ('convergence', '--towers=0', 'at least 1'),
    ('convergence', '--output=/nowhere/figures', 'no folder /nowhere'),
    ('endurance', '--steps=3', 'at least 10'),
    ('guard', '--rounds=0', 'at least 1'),
    ('input', '--resume', '--data_dir'),
    ('input', '--data_dir=/nowhere', 'there is no /nowhere'),
    ('mnist', '--steps=3', '--steps=3 in --rounds=20'),
    ('overlap', '--towers=0', 'at least 1'),
    ('setup', '--builds=clone,copy', 'choose from clone,sgd,reuse,mirrored'),
    ('workers', '--nets=cnn,rnn', "no 'rnn'"),
    ('workers', '--kinds=towers,horovod', '--kinds=towers,horovod: choose from towers,'),
    ('workers', '--kinds=fit', 'with towers among them')])
def test_every_benchmark_refuses(name, flag, what, monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', [name, flag])
  with pytest.raises(SystemExit) as error:
    importlib.import_module('benchmarks.' + name).main()
  assert error.value.code == 2
  assert what in capsys.readouterr().err
