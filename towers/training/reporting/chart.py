"""Chart: curves as SVG, drawn in plain Python, inside of a page or as a file.

Inside of a page colours come from the page, so that it may be light or dark; a file has its own.

   2.5 ┤╲                       a `Curve` is a name and points (x, y); what is no number is a gap
   1.5 ┤ ╲__•
   0.5 ┤    ╲____•____
       └─────┬──────┬──
            100    200
"""

import html
import math
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

_WIDTH, _HEIGHT = 560, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 26
NUM_COLOURS = 6
# Of a file: room above for title and legend, beneath for what the axis is.
_HEAD, _FOOT = 44, 22
_FILE_COLOURS = ('#1b6ca8', '#d1495b', '#3c8d40', '#8a5a99', '#b7791f', '#4a5568')


class Curve(NamedTuple):
  """One line of a chart.

  Attributes:
    name: for the legend, and for those who point at a dot.
    points: (x, y), x at least 0 and rising.
    colour: a number from 0, which the page has a colour for (class `c0`, `c1`, …).
    has_dots: whether every point is drawn, thick; otherwise a thin line.
  """
  name: str
  points: Sequence[Tuple[float, float]]
  colour: int
  has_dots: bool = False


def draw_chart(title: str, curves: Sequence[Curve], *, from_zero: bool = False) -> str:
  """Returns a figure with a legend, or '' where no curve has a point.

  Args:
    title: of the figure.
    curves: to draw over one another.
    from_zero: whether the axis begins at 0, as that of a speed should.
  """
  curves = _leave_gaps(curves)
  if not curves:
    return ''
  legend = ''.join(f'<span class="c{curve.colour % NUM_COLOURS}">{_mark(curve)} '
                   f'{html.escape(curve.name)}</span>' for curve in curves)
  drawing = _draw(curves, 'step', least=0.0 if from_zero else None)
  return (f'<figure><figcaption>{html.escape(title)} <small>{legend}</small></figcaption><svg '
          f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
          f'aria-label="{html.escape(title)}">{drawing}</svg></figure>')


def write_chart(path: str, title: str, curves: Sequence[Curve], *, x_label: str,
                most: Optional[float] = None, format_y: Optional[Callable[[float],
                                                                          str]] = None) -> None:
  """Writes a file of SVG; later curves are thinner, so that those that lie on each other are all
  seen.

  Args:
    path: to write to.
    title: above them.
    curves: to draw over one another, at least one with a point.
    x_label: what the axis beneath is.
    most: the upper end of the upright axis, which begins at 0; None for a round number that holds
      all.
    format_y: of a number at the left; `format_number` if None.
  """
  curves = _leave_gaps(curves)
  styles = ['.grid { stroke: #ddd; }'] + [
      '.c%d { fill: %s; } polyline.c%d { fill: none; stroke: %s; stroke-width: %.1f; }'
      % (number, colour, number, colour, 1.5 + max(0, len(curves) - 1 - number))
      for number, colour in enumerate(_FILE_COLOURS)]
  legend = '  '.join(f'<tspan class="c{curve.colour % NUM_COLOURS}">{_mark(curve)} '
                     f'{html.escape(curve.name)}</tspan>' for curve in curves)
  lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} '
           f'{_HEAD + _HEIGHT + _FOOT}" font-family="sans-serif" font-size="11">',
           f"<style>{' '.join(styles)}</style>",
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="12" y="17">{html.escape(title)}</text>',
           f'<text x="{_LEFT}" y="35" xml:space="preserve">{legend}</text>',
           '<g transform="translate(0 '
           f'{_HEAD})">{_draw(curves, x_label, least=0.0, most=most, format_y=format_y)}</g>',
           f'<text x="{int((_LEFT + _WIDTH - _RIGHT) // 2)}" y="{_HEAD + _HEIGHT + 10}" '
           f'text-anchor="middle">{html.escape(x_label)}</text>', '</svg>', '']
  with open(path, 'w', encoding='utf-8') as file:
    file.write('\n'.join(lines))


def _leave_gaps(curves):
  """Returns the curves that have points that are numbers, with these points alone."""
  curves = [
      curve._replace(points=[(x, y)
                             for x, y in curve.points
                             if math.isfinite(y)])
      for curve in curves
  ]
  return [curve for curve in curves if curve.points]


def _mark(curve):
  return '●' if curve.has_dots else '━'


def _draw(curves, x_label, *, least=None, most=None, format_y=None):
  """Returns the inside of an SVG of `_WIDTH` by `_HEIGHT`: grid, numbers at both axes, curves."""
  # From 0 on, so that all charts of a run stand under one another.
  xs = [0.0] + [x for curve in curves for x, _ in curve.points]
  ys = [y for curve in curves for _, y in curve.points]
  x_ticks = find_ticks(min(xs), max(xs), 6)
  y_ticks = find_ticks(min(ys) if least is None else least, max(ys) if most is None else most, 4)
  left, right = min(xs), max(xs)
  bottom, top = min(min(ys), y_ticks[0]), max(max(ys), y_ticks[-1])

  def place(x, y):
    across = (x - left) / (right - left) if right > left else 0.5
    up = (y - bottom) / (top - bottom) if top > bottom else 0.5
    return (_LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM))

  parts = []
  for y in y_ticks:
    _, down = place(left, y)
    parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{down:.1f}" '
                 f'y2="{down:.1f}"/><text x="{_LEFT - 6}" y="{down + 4:.1f}" '
                 f'text-anchor="end">{(format_y or format_number)(y)}</text>')
  for x in x_ticks:
    if left <= x <= right:
      parts.append(f'<text x="{place(x, bottom)[0]:.1f}" y="{_HEIGHT - 8}" '
                   f'text-anchor="middle">{format_number(x)}</text>')
  for curve in curves:
    line = ' '.join('{:.1f},{:.1f}'.format(*place(x, y)) for x, y in curve.points)
    parts.append("<polyline "
                 f"class=\"c{curve.colour % NUM_COLOURS}{' thick' if curve.has_dots else ''}\" "
                 f"points=\"{line}\"/>")
    if curve.has_dots or len(curve.points) == 1:
      for x, y in curve.points:
        parts.append('<circle class="c%d" cx="%.1f" cy="%.1f" r="3"><title>%s, %s %s: '
                     '%s</title></circle>' % (
            (curve.colour % NUM_COLOURS,) + place(x, y) + (
                html.escape(curve.name), html.escape(x_label), format_number(x), f'{y:.4g}')))
  return ''.join(parts)


def find_ticks(least: float, most: float, count: int) -> List[float]:
  """Returns about `count` round numbers from at or below `least` to at or above `most`."""
  if most <= least:
    return [least]
  rough = (most - least) / count
  power = 10.0 ** math.floor(math.log10(rough))
  step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
  first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
  return [number * step for number in range(first, last + 1)]


def format_number(value: float) -> str:
  """Returns 0, 0.25, 1,500 or 2e-05."""
  if value == 0 or 1e-3 <= abs(value) < 1e7:
    return f'{round(value, 6):,.10g}'
  return f'{value:.3g}'
