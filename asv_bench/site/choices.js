"use strict";
// track_choice counts algorithms by a code, which the text of the benchmark explains: show their ids.

const CODES = "code of the pick"; // its unit
const ids = new Map();
for (const benchmark of Object.values(ASV_DATA["index.json"].benchmarks)) {
  if (benchmark.unit !== CODES) continue;
  for (const [, code, id] of benchmark.code.matchAll(/^\s*(\d+) (\S+)$/gm)) ids.set(Number(code), id);
}

function named(code) {
  return ids.get(code) ?? `an earlier algorithm (${code})`;
}

$(() => {
  const other = $.asv.pretty_unit;
  $.asv.pretty_unit = (value, unit) => {
    if (unit !== CODES) return other(value, unit);
    if (ids.has(value)) return ids.get(value);
    return value === 0 ? "the same" : "another pick"; // a difference, or a mean over layers
  };

  const plot = $.plot;
  $.plot = Object.assign((place, data, options) => {
    if (options.yaxis?.axisLabel === CODES) {
      const lines = data.map((line) => line.data ?? line);
      const codes = [...new Set(lines.flat().map((point) => point[1]).filter((code) => code !== null))];
      const margin = 0.1 * (Math.max(...codes) - Math.min(...codes)) || 1;
      options.yaxis = {
        ...options.yaxis,
        axisLabel: "pick",
        tickFormatter: undefined,
        ticks: codes.map((code) => [code, named(code)]),
        min: Math.min(...codes) - margin,
        max: Math.max(...codes) + margin,
      };
    }
    return plot(place, data, options);
  }, plot);
});
