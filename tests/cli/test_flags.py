"""What people type is answered: abbreviations, other people's names, units, and -h."""

import re

import pytest

import towers
from towers.base.usage_error import UsageError
from towers.cli.flags import parse_flags
from towers.settings.table import find_meant


@pytest.mark.parametrize('typed, message', [
    ('--lr=0.1', 'There is no flag --lr: did you mean --learning_rate?'),
    ('--gpus=2', 'There is no flag --gpus: did you mean --num_gpus or --logical_gpus?'),
    ('--learning-rate=1', 'There is no flag --learning-rate: did you mean --learning_rate?'),
    ('--noshuffel', 'There is no flag --noshuffel: did you mean --shuffle?'),
    ('--epoch=3', 'There is no flag --epoch: did you mean --epochs'),
    ('--num_gpus=two', '--num_towers=two: it must be a whole number'),
    ('--bs=8', 'There is no flag --bs: did you mean --batch_size?'),
    ('--zzz', 'There is no flag --zzz.\n'),
    ('--batch_size=64k', '--batch_size=64k: it must be a whole number.'),
    ('--batch_size=6.4', 'batch_size=6.4: it must be a whole number.'),
    ('--learning_rate=1:2', '--learning_rate=1:2: it must be a finite number, such as 0.1.'),
    ('--epochs=two', '--epochs=two: it must be a finite number, such as 0.1.'),
    ('--shuffle=maybe', 'shuffle=maybe: it must be true or false.'),
    ('--batch_size', 'Missing value for flag --batch_size')])
def test_mistakes_name_the_flag_that_was_meant_or_the_value_it_takes(typed, message):
  with pytest.raises(UsageError) as caught:
    parse_flags(['dir/my_train.py', typed])
  assert message in str(caught.value) and 'python my_train.py --helpshort' in str(caught.value)
  assert 'invalid literal' not in str(caught.value)


@pytest.mark.parametrize('typed', ['-h', '--h', '--help', '-help'])
def test_every_way_to_ask_for_help_is_answered(typed, capsys):
  assert parse_flags(['main.py', typed]) is None
  assert '--learning_rate' in capsys.readouterr().out


def test_the_version_is_told(capsys):
  assert parse_flags(['main.py', '--version']) is None
  line = capsys.readouterr().out
  assert re.match(rf'towers {re.escape(towers.__version__)}, tensorflow(-gpu)? [\d.]+, '
                  r'Python [\d.]+\n$', line)


def test_words_that_are_no_flags_and_lists_that_are_no_numbers_are_named():
  with pytest.raises(UsageError, match='split: not a flag. Flags begin with --, as --split'):
    parse_flags(['main.py', 'split'])
  with pytest.raises(UsageError, match='decay_epochs=1,two: they must be numbers'):
    parse_flags(['main.py', '--decay_epochs=1,two', '--schedule=piecewise'])


def test_flags_of_a_program_itself_are_meant_too():
  assert find_meant('widht', ['width', 'batch_size']) == ['width']
