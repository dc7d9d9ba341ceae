"""Every setting is said once, and arguments, flags and docs are made from that."""

import inspect
import os
import re

import numpy as np
import pytest

import towers
from tests import ROOT
from tests.harness import small
from towers.cli.command_line import main
from towers.cli.flags import format_help, parse_flags
from towers.settings.config import Config
from towers.settings.table import SETTINGS, arguments_of


@pytest.mark.parametrize('of, function, own', [
    ('program', towers.Program, {'model', 'train', 'validation', 'optimizer', 'learning_rate',
                                 'workers', 'frozen', 'rate_factors', 'init_from'}),
    ('run', towers.train, {'program', 'callbacks'})])
def test_the_arguments_of_a_function_are_the_settings_with_their_defaults(of, function, own):
  parameters = dict(inspect.signature(function).parameters)
  assert own <= set(parameters)
  required = inspect.Parameter.empty
  given = {name: parameters[name].default for name in parameters if name not in own}
  wanted = {name: setting.default for name, setting in arguments_of(of).items()}
  if of == 'program':
    wanted['batch_size'] = required  # No program trains on another batch than was meant.
  assert given == wanted


def test_no_setting_is_said_twice():
  names = [*SETTINGS, *(setting.alias for setting in SETTINGS.values() if setting.alias)]
  assert len(set(names)) == len(names)
  for name in names:
    assert len(re.findall(rf'(?m)^  (?:--\w+, )?--{name}\b', format_help('main.py'))) == 1, name


@pytest.mark.parametrize('settings, flags, message', [
    (dict(num_towers=0), ['--num_gpus=0'], 'num_towers=0: it must be at least 1'),
    (dict(batch_size=2.5), ['--batch_size=2.5'], 'batch_size=2.5: it must be a whole number'),
    (dict(batch_size=4, accumulate=3), ['--batch_size=4', '--accumulate=3'],
     'accumulate=3 micro-batches'),
    (dict(input_mode='all'), ['--input_mode=all'],
     'input_mode=all: choose one of split, next, shard'),
    (dict(num_towers=1, validation_tower=True), ['--num_gpus=1', '--validation=tower'],
     'validation_tower=True takes one tower for itself, and num_towers=1 leaves none')])
def test_a_setting_has_one_name_in_python_and_in_a_shell(settings, flags, message, capsys):
  with pytest.raises(towers.UsageError) as caught:
    small.program(**settings)
  assert message in str(caught.value) and '--' not in str(caught.value)
  assert main(['main.py', '--device=cpu', '--data=synthetic', '--model=linear', *flags]) == 2
  assert message in capsys.readouterr().err


@pytest.mark.parametrize('flags', [
    ['--num_towers=3', '--validation_tower'], ['--num_gpus=3', '--validation=tower'],
    ['--num_gpus', '3', '--validation', 'tower']])
def test_the_other_name_of_a_flag_is_the_same(flags):
  assert parse_flags(['main.py', *flags]) == Config(num_towers=3, validation_tower=True)


@pytest.mark.parametrize('settings', [
    dict(batch_size=np.int64(4), seed=np.int32(3)), dict(fusion_megabytes=1, weight_decay=0),
    dict(clip_norm=np.float32(1.0), shuffle=np.bool_(True))], ids=str)
def test_numbers_of_numpy_and_whole_ones_are_settings_too(settings):
  with small.program(**settings).session() as session:
    assert np.isfinite(session.train())


def test_the_docs_list_every_flag_as_the_help_does():
  with open(os.path.join(ROOT, 'docs', 'running.md'), encoding='utf-8') as file:
    text = file.read()
  assert f"```\n{format_help('main.py')}\n```" in text
