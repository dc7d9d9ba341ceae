"""Pictures of curves as SVG, which takes no package to draw and none to show."""

import math
from typing import NamedTuple, Optional, Sequence

COLOURS = ('#1b6ca8', '#d1495b', '#3c8d40', '#8a5a99')
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 400, 64, 24, 48, 52
_TICKS = 5


class Curve(NamedTuple):
  """A curve, by its name and its points; both axes begin at 0."""
  name: str
  xs: Sequence[float]
  ys: Sequence[float]


def draw(curves: Sequence[Curve], *, title: str, x_label: str, y_format: str, path: str,
         y_last: Optional[float] = None) -> None:
  """Writes a picture; later curves are thinner, so that curves that lie on each other are all seen.

  Args:
    curves: at least one.
    title: above them.
    x_label: beneath them.
    y_format: of a number at the left.
    path: to write to.
    y_last: the end of the upright axis; None for the first round number that holds all.
  """
  x_last = max(max(curve.xs) for curve in curves)
  y_last = y_last or _round_up(max(max(curve.ys) for curve in curves))

  def place(x, y):
    return '%.1f,%.1f' % (_LEFT + x / x_last * (_WIDTH - _LEFT - _RIGHT),
                          _HEIGHT - _BOTTOM - y / y_last * (_HEIGHT - _TOP - _BOTTOM))

  parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">'
           % (_WIDTH, _HEIGHT), '<rect width="100%" height="100%" fill="white"/>',
           '<text x="%d" y="24" font-size="14">%s</text>' % (_LEFT, title)]
  for tick in range(_TICKS + 1):
    value = y_last * tick / _TICKS
    x, y = place(0, value).split(',')
    parts += ['<path d="M%s,%s H%d" stroke="#ddd"/>' % (x, y, _WIDTH - _RIGHT),
              '<text x="%d" y="%.1f" text-anchor="end">%s</text>' % (_LEFT - 8, float(y) + 4, y_format.format(value))]
  xs = sorted({x for curve in curves for x in curve.xs})
  for x in [0] + (xs if len(xs) <= _TICKS else [x_last * tick / _TICKS for tick in range(1, _TICKS + 1)]):
    parts.append('<text x="%s" y="%d" text-anchor="middle">%d</text>'
                 % (place(x, 0).split(',')[0], _HEIGHT - _BOTTOM + 20, x))
  parts.append('<text x="%d" y="%d" text-anchor="middle">%s</text>'
               % ((_LEFT + _WIDTH - _RIGHT) // 2, _HEIGHT - 12, x_label))
  # Where the most room is left for the names: above curves that end low, beneath those that end high.
  ends_high = sum(curve.ys[-1] for curve in curves) / len(curves) > y_last / 2
  for number, curve in enumerate(curves):
    style = 'stroke="%s" stroke-width="%.1f"' % (COLOURS[number % len(COLOURS)], 2 + (len(curves) - 1 - number))
    points = ' '.join(place(x, y) for x, y in zip(curve.xs, curve.ys))
    y = _HEIGHT - _BOTTOM - 20 * (len(curves) - number) if ends_high else _TOP + 20 * (number + 1)
    x = _WIDTH - 190 if ends_high else _LEFT + 30
    parts += ['<polyline fill="none" %s points="%s"/>' % (style, points),
              '<path d="M%d,%d h28" %s/>' % (x, y, style),
              '<text x="%d" y="%d">%s</text>' % (x + 38, y + 4, curve.name)]
  with open(path, 'w', encoding='utf-8') as file:
    file.write('\n'.join(parts + ['</svg>', '']))


def _round_up(value):
  """Returns the first of 1, 2 and 5 times a power of ten that is not below `value`."""
  power = 10.0 ** math.floor(math.log10(value))
  return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value)
