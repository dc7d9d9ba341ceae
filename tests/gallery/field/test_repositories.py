"""Modules are imported from a folder, with stand-ins for packages that are not installed."""

import sys

import pytest

from tests.gallery.field import repositories
from tests.gallery.field.programs import REPOSITORIES


@pytest.mark.plain
def test_a_module_is_imported_alone_and_leaves_no_name_behind(tmp_path, monkeypatch):
  monkeypatch.setattr(repositories, 'FOLDER', str(tmp_path))
  for name in ('one', 'other'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'utils.py').write_text(f'name = {name!r}\n')
    (tmp_path / name / 'model.py').write_text(
        'import sys\nfrom absl import flags\nimport no_such_package.part as part\nimport utils\n'
        'FLAGS = flags.FLAGS\nflags.DEFINE_integer("field_width", 3, "")\n'
        'class Net(part.Base, part.More):\n  pass\n'
        'net = Net(3, width=2)\n'
        '@part.configurable\ndef doubled(number):\n  return 2 * number\n'
        'is_net = isinstance(net, part.Base) and not isinstance(net, part.Other)\n'
        'name, made, arguments = utils.name, part.make(2).more, sys.argv[1:]\n')
  known = set(sys.modules)
  one = repositories.load('one', 'model', arguments=('--mode=train',))
  other, utils = repositories.load('other', 'model', 'utils')
  assert (one.name, other.name, utils.name) == ('one', 'other', 'other')
  assert one.is_net and one.net.width == 2 and one.doubled(3) == 6
  assert one.arguments == ['--mode=train'] and one.FLAGS.field_width == 3
  assert set(sys.modules) == known and str(tmp_path / 'one') not in sys.path


@pytest.mark.plain
def test_a_repository_that_is_not_there_is_skipped(tmp_path, monkeypatch):
  monkeypatch.setattr(repositories, 'FOLDER', str(tmp_path))
  with pytest.raises(pytest.skip.Exception, match='FIELD_FOLDER'):
    repositories.load('nowhere', 'model')


@pytest.mark.plain
@pytest.mark.parametrize('name', REPOSITORIES)
def test_the_glue_is_short(name):
  longer = dict.fromkeys(('glow', 'dcgan', 'pix2pix', 'srgan', 'style', 'gcn',
                           'tensor2tensor', 'musegan', 'schnet', 'flow'), 15)
  longer.update(dqn=16, rcnn=16, mixmatch=19, stargan=16, sac=20, pggan=24, molgan=16,
                factor_vae=18, tracker=11, clicked=11)
  assert 0 < REPOSITORIES[name].lines <= longer.get(name, 10)
