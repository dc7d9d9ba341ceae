"""Usage errors: the line beside one is the program's own, and none of ours."""

import os

import pytest

from tests import ROOT
from towers.base.usage_error import UsageError, find_own_line


@pytest.mark.parametrize('path', ['/home/train.py', os.path.join(ROOT, 'towers_run.py')])
@pytest.mark.parametrize('line', ['towers.from_arrays()', 'towers.KerasModel(3)',
                                  'towers.train(1, epochs=2)'])
def test_the_line_of_a_mistake_is_that_of_the_program(line, path):
  with pytest.raises(UsageError) as error:
    exec(compile(f'import towers\n{line}', path, 'exec'), {})
  assert find_own_line(error.value.__traceback__) == f'{path}:2'
