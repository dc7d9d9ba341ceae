"""Input advice: what may help towers that waited for their input."""

from typing import Optional

from towers.base.cores import count_cores

# Below this share of the time, faster input gains little.
_ADVISE_FROM = 0.1


def advise(waited: float, *, input_threads: Optional[int] = None, staging_depth: int = 1,
           is_image_folder: bool = False, needs_threads: bool = True) -> str:
  """Returns what may help towers that waited for a share of their time, or '' if they hardly did.

  `needs_threads` says whether the input does, see `towers.Inputs`; the rest are settings.
  """
  if waited < _ADVISE_FROM:
    return ''
  cores = count_cores()
  threads = input_threads or cores
  ways = []
  if staging_depth == 0:
    ways.append('staging_depth=1 makes the next batch while the towers compute')
  if not needs_threads:
    ways.append('a larger batch_size, since taking rows out of arrays is slow beside such short '
                'steps')
  elif threads < cores:
    ways.append(f'input_threads={cores} uses all cores, where it is {threads}')
  else:
    ways.append(f'all {cores} cores decode already: input_threads={2 * threads} helps only if '
                'disks are slow, otherwise more cores or smaller images do')
  if is_image_folder:
    ways.append('python -m towers.data.convert makes few large files of many small ones')
  ways.append('--input_only measures the input alone, in every mode')
  return f"the towers waited for input {waited:.0%} of the time. What may help: {'; '.join(ways)}."
