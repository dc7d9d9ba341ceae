"""The house: who may import whom, that every part has its tests, and that all of it is packaged."""

import ast
import os

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOUNDATION = {'cores', 'distributions', 'garbage', 'tensorflow_v1', 'usage_error'}
# Each may import the foundation and what stands here.
MAY_IMPORT = {
    'tensorflow_v1': set(),
    'staging': {'staging'},
    'models': {'models'},
    'data': {'data'},
    'towers': {'towers', 'staging', 'data.examples', 'models.batch_norm'},
    'launch': {'launch', 'training.signals'},
    'training': {'training', 'towers', 'data', 'models'},
    'examples': {'towers', 'data', 'models'},
    'benchmarks': {'benchmarks', 'main', 'launch', 'training', 'towers', 'data', 'models'},
}


def files(folder):
  for path, _, names in os.walk(os.path.join(ROOT, folder)):
    for name in names:
      if name.endswith('.py'):
        yield os.path.relpath(os.path.join(path, name), ROOT)


def imports(path):
  with open(os.path.join(ROOT, path), encoding='utf-8') as file:
    tree = ast.parse(file.read())
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, '%s imports relatively' % path
      yield node.module


OURS = {name[:-3] if name.endswith('.py') else name for name in os.listdir(ROOT)
        if name.endswith('.py') or os.path.exists(os.path.join(ROOT, name, '__init__.py'))}


@pytest.mark.parametrize('folder', sorted(MAY_IMPORT))
def test_imports_go_one_way(folder):
  for path in files(folder):
    for module in imports(path):
      if module.split('.')[0] in OURS:
        allowed = MAY_IMPORT[folder] | FOUNDATION
        assert any(module == name or module.startswith(name + '.') for name in allowed), '%s: %s' % (path, module)


def test_cores_are_counted_in_one_place():
  for folder in MAY_IMPORT:
    for path in files(folder):
      with open(os.path.join(ROOT, path), encoding='utf-8') as file:
        text = file.read()
      assert 'cpu_count' not in text and 'sched_getaffinity' not in text, '%s: cores.count_cores knows' % path


def test_every_folder_has_its_rule():
  packages = {name for name in OURS if os.path.isdir(os.path.join(ROOT, name))}
  assert packages - {'tests'} <= set(MAY_IMPORT)


@pytest.mark.parametrize('folder', ['tensorflow_v1', 'towers', 'staging', 'models', 'data', 'training', 'launch'])
def test_public_functions_and_classes_are_documented(folder):
  for path in files(folder):
    with open(os.path.join(ROOT, path), encoding='utf-8') as file:
      tree = ast.parse(file.read())
    assert ast.get_docstring(tree) or not tree.body, path
    for node in tree.body:
      if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith('_'):
        assert ast.get_docstring(node), '%s: %s' % (path, node.name)
        for method in getattr(node, 'body', []):
          if isinstance(node, ast.ClassDef) and isinstance(method, ast.FunctionDef) and method.name[0] != '_':
            assert ast.get_docstring(method), '%s: %s.%s' % (path, node.name, method.name)


def test_public_names_are_what_they_say():
  import towers
  for name in towers.__all__:
    assert getattr(towers, name) is not None
  assert towers.__all__ == sorted(towers.__all__)
