"""The house: rooms follow the data path, and no room imports one above it."""

import ast
import functools
import importlib
import os
import re

import pytest

import towers
from tests import ROOT
from towers import extras
from towers.settings.table import SETTINGS

pytestmark = pytest.mark.plain

# From the ground up, a line a folder or file. One may import itself and what stands before it.
ROOMS = [
    'towers.base',
    'towers.extras',
    'towers.tensorflow_v1',
    'towers.process',
    'towers.graph',
    'towers.placement',
    'towers.data',
    'staging',
    'towers.input',
    'towers.whole',
    'towers.tower',
    'towers.reduce',
    'towers.update',
    'towers.optimizers',
    'towers.warm_start',
    'towers.validation',
    'towers.settings',
    'towers.training_graph',
    'towers.coupling',
    'towers.checkpoint',
    'towers.workers',
    'towers.session',
    'towers.program',
    'towers.checks',
    'towers.training',
    'towers.cli',
    'towers.__main__',
    'main',
    'towers_data',
    'towers_launch',
    'towers_tools',
    'examples',
    'benchmarks',
]
# The zoo stands beside the house: it needs four modules of it, and none of them needs the zoo.
ZOO_IMPORTS = ('models', 'towers.tensorflow_v1', 'towers.base.usage_error',
               'towers.tower.all_towers', 'towers.tower.batch_norm.layer')
# Where a flag names a model of the zoo.
ZOO_IS_NAMED = ('towers.settings.table', 'towers.cli.jobs', 'examples', 'benchmarks')
# What training does without: no file of the middle imports them, and none of them another.
EXTRAS = sorted({target.split('.')[0] for target in extras.FUNCTIONS.values()})
PACKAGES = ['towers', 'staging', 'models',
            *(f'extras/{name}/{name}' for name in EXTRAS)]
# So many files can be taken in at a glance.
MOST_FILES = 16


def files(folder):
  for path, _, names in os.walk(os.path.join(ROOT, folder)):
    for name in names:
      if name.endswith('.py'):
        yield os.path.relpath(os.path.join(path, name), ROOT)


@functools.lru_cache(maxsize=None)
def read_tree(path):
  with open(os.path.join(ROOT, path), encoding='utf-8') as file:
    return ast.parse(file.read())


def module_of(path):
  # A package of extras/ stands in a folder of its own, beside its tests.
  inner = path.split(os.sep, 2)[2] if path.startswith('extras' + os.sep) else path
  name = inner[:-len('.py')].replace(os.sep, '.')
  return name[:-len('.__init__')] if name.endswith('.__init__') else name


MODULES = {
    module_of(path): path for folder in PACKAGES + ['examples', 'benchmarks']
    for path in files(folder)}
MODULES['main'] = 'main.py'


@functools.lru_cache(maxsize=None)
def imports(module):
  """Returns our modules that a module imports, at its top or later.

  A public name of `towers` counts as the module that defines it.
  """
  found = set()
  for node in ast.walk(read_tree(MODULES[module])):
    if isinstance(node, ast.Import):
      found.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      # Only modules of `models` and `staging` import relatively.
      package = (f"{module.split('.')[0]}.{node.module or ''}".rstrip('.') if node.level else
                 node.module)
      for alias in node.names:
        full = f'{package}.{alias.name}'
        if full in MODULES:
          found.add(full)
        else:
          found.add(towers._PUBLIC.get(alias.name, package) if package == 'towers' else package)
    elif isinstance(node, ast.Attribute) and getattr(node.value, 'id', '') == 'towers':
      found.add(towers._PUBLIC.get(node.attr, 'towers'))
  # Two packages of `towers` stand beside it.
  found = {re.sub(r'^towers\.(staging|models)\b', r'\1', name) for name in found}
  # The imports of `towers` itself are those of its modules.
  return {name for name in found if name in MODULES and name not in (module, 'towers')}


def floor_of(module):
  [floor] = [index for index, room in enumerate(ROOMS)
             if module == room or module.startswith(room + '.')]
  return floor


def may_import(module, other):
  mine, extra = module.split('.')[0], other.split('.')[0]
  if mine == 'models':
    return other.startswith(ZOO_IMPORTS)
  if extra == 'models':
    return module.startswith(ZOO_IS_NAMED)
  # No package of extras/ imports another one.
  return floor_of(other) <= floor_of(module) and (
      extra not in EXTRAS or mine in (extra, 'examples', 'benchmarks'))


def test_nothing_imports_what_stands_above_or_apart():
  assert not [f'{module} imports {other}' for module in MODULES if module != 'towers'
              for other in imports(module) if not may_import(module, other)]


def test_there_are_no_circles():
  finished = set()

  def visit(module, trail):
    assert module not in trail, ' -> '.join(trail[trail.index(module):] + [module])
    if module not in finished:
      for other in imports(module):
        visit(other, trail + [module])
      finished.add(module)

  for module in MODULES:
    visit(module, [])


def test_rooms_can_be_looked_over():
  for folder in PACKAGES + ['benchmarks', 'tests', 'extras', 'examples', 'docs']:
    for path, _, names in os.walk(os.path.join(ROOT, folder)):
      names = [name for name in names if not name.endswith('.pyc') and name != '__init__.py']
      assert len(names) <= MOST_FILES, f'{os.path.relpath(path, ROOT)} has {len(names)} files'


def test_cores_are_counted_in_one_place():
  for folder in PACKAGES + ['benchmarks']:
    for path in files(folder):
      if path != os.path.join('towers', 'base', 'cores.py'):
        with open(os.path.join(ROOT, path), encoding='utf-8') as file:
          text = file.read()
        for name in ('cpu_count', 'sched_getaffinity'):
          assert name not in text, f'{path}: use cores.count_cores instead of {name}'


def test_every_line_goes_through_the_writer_that_cannot_fail():
  for path in files('towers'):
    for node in ast.walk(read_tree(path)) if path != 'towers/base/output.py' else ():
      prints = isinstance(node, ast.Name) and node.id == 'print'
      writes = (isinstance(node, ast.Attribute) and node.attr in ('write', 'writelines') and
                "attr='std" in ast.dump(node.value))
      assert not prints and not writes, f'{path}:{node.lineno}: use towers.base.output.write_line'


def test_a_message_names_a_setting_as_python_and_a_shell_do():
  """Not by the flag of an argument of `towers.Program` or `towers.train`."""
  arguments = '|'.join(name for name, setting in SETTINGS.items() if setting.of != 'command')
  of_flags = re.compile(rf'--(no)?({arguments})\b|\bthe flag out\b|\bthe (same )?flags that\b')
  for path in files('towers'):
    tree = read_tree(path)
    docs = {id(node.body[0].value) for node in ast.walk(tree)
            if isinstance(getattr(node, 'body', None), list) and node.body
            and isinstance(node.body[0], ast.Expr)}
    # Those two write what is read on a command line alone.
    for node in ast.walk(tree) if not path.startswith(
        ('towers/cli/', 'towers/settings/table.py')) else ():
      text = getattr(node, 's', None) if id(node) not in docs else None
      assert not isinstance(text, str) or not of_flags.search(text), f'{path}:{node.lineno}'


def test_public_functions_and_classes_are_documented():
  for path in [path for folder in PACKAGES for path in files(folder)]:
    tree = read_tree(path)
    assert ast.get_docstring(tree) or not tree.body, path
    for node in tree.body:
      if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith('_'):
        assert ast.get_docstring(node), f'{path}: {node.name}'
        for method in node.body if isinstance(node, ast.ClassDef) else ():
          if isinstance(method, ast.FunctionDef) and method.name[0] != '_':
            assert ast.get_docstring(method), f'{path}: {node.name}.{method.name}'


def test_public_names_are_what_they_say():
  for name in towers.__all__:
    assert getattr(towers, name) is not None
  assert towers.__all__ == sorted(towers.__all__)
  tree = read_tree('towers/__init__.py')
  [typed] = [node for node in tree.body if isinstance(node, ast.If)
             and getattr(node.test, 'id', '') == 'TYPE_CHECKING']
  assert {alias.name: node.module for node in typed.body for alias in node.names} == towers._PUBLIC


def test_a_name_that_is_not_at_the_door_says_where_it_is():
  """Of those that once stood there, and of any other that one module alone makes."""
  for module, names in {
      'towers.checks.towers': 'CheckReport', 'towers.input.feed': 'Feed build_switched_batches',
      'towers.input.plan': 'Plan build_plan', 'towers.placement.counters': 'get_global_step',
      'towers.placement.devices': 'Devices build_session_config', 'towers.tower.tower': 'Tower',
      'towers.reduce.gradients': 'ReducedGradients', 'towers.tower.model_call': 'Model ModelCall',
      'towers.warm_start.matching': 'InitFrom', 'towers.placement.host': 'HOST',
      'towers.data': 'LoadSettings'}.items():
    for name in names.split():
      with pytest.raises(AttributeError, match=f': write from {module} import {name}$'):
        getattr(towers, name)
      assert getattr(importlib.import_module(module), name) is not None
  for name in ('Tensor', 'no_such_name', '_search_', 'os('):  # Two modules make the first.
    with pytest.raises(AttributeError, match=f"has no attribute '{re.escape(name)}'$"):
      getattr(towers, name)


def test_no_inner_file_goes_through_the_front_door():
  for path in [path for folder in PACKAGES for path in files(folder)]:
    for node in ast.walk(read_tree(path)) if path != 'towers/__init__.py' else ():
      names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
      assert 'towers' not in names, f'{path}:{node.lineno}'
      assert getattr(node, 'module', None) != 'towers', f'{path}:{node.lineno}'
