"use strict";
(() => {
  const parsed = (id) => JSON.parse(document.getElementById(id).textContent);
  const sections = parsed("data");
  const palette = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#6b8e9e",
    "#c4b454", "#8c564b", "#d3a4d9", "#5b8c5a"];
  const given = new Map([["other", "#c8c8c8"], ["it stands still", "#e15759"], ["while it stands still", "#e15759"]]);
  // colour is the same for a part wherever it is shown.
  const colour = (label) => {
    if (!given.has(label)) given.set(label, palette.filter((c) => ![...given.values()].includes(c))[0] || palette[given.size % palette.length]);
    return given.get(label);
  };
  const seconds = (v) => (v >= 0.9995 ? Number(v.toPrecision(3)) + " s" : Number((v * 1000).toPrecision(3)) + " ms");
  const megabytes = (v) => Number((v / 1e6).toPrecision(3)) + " MB";
  const own = (way) => way.startsWith("godwit");
  Chart.defaults.font.size = 12;
  Chart.defaults.animation = false;

  // values writes each bar's number behind it.
  const values = (show, of) => ({
    id: "values",
    afterDatasetsDraw: (chart) => {
      const context = chart.ctx;
      context.save();
      context.fillStyle = "#333";
      context.font = "11px sans-serif";
      context.textBaseline = "middle";
      chart.data.datasets.forEach((set, i) => {
        chart.getDatasetMeta(i).data.forEach((bar, k) => {
          const value = of(chart, i, k);
          if (value > 0) context.fillText(show(value), bar.x + 4, bar.y);
        });
      });
      context.restore();
    },
  });
  const sums = (chart, i, k) => {
    if (i !== chart.data.datasets.length - 1) return 0; // once, behind the last part
    return chart.data.datasets.reduce((sum, s) => sum + s.data[k], 0);
  };

  const options = (title, show, changes) => ({
    indexAxis: "y",
    maintainAspectRatio: false,
    layout: { padding: { right: 60 } },
    plugins: {
      title: { display: true, text: title, align: "start", font: { size: 14 } },
      legend: { position: "bottom", labels: { boxWidth: 12 } },
      tooltip: { callbacks: { label: (c) => c.dataset.label + ": " + show(c.raw) } },
    },
    ...changes,
  });

  const bars = (canvas, title, ways, stacks, show) => {
    const used = stacks.filter((s) => s.data.some((v) => v > 0));
    canvas.parentNode.style.height = 100 + 26 * ways.length + "px";
    new Chart(canvas, {
      type: "bar",
      data: {
        labels: ways,
        datasets: used.map((s) => ({ label: s.label, data: s.data, backgroundColor: colour(s.label) })),
      },
      options: options(title, show, {
        scales: {
          x: { stacked: true, ticks: { callback: show, maxTicksLimit: 7 } },
          y: { stacked: true, ticks: { autoSkip: false, font: (c) => ({ weight: own(ways[c.index] || "") ? "bold" : "normal" }) } },
        },
      }),
      plugins: [values(show, sums)],
    });
  };

  // closer shows Godwit's ways alone, where beside the others nothing can be seen of them.
  const closer = (canvas, s) => {
    const whole = s.ways.map((_, i) => s.freeze.reduce((sum, part) => sum + part.data[i], 0));
    const shown = s.ways.map((way, i) => i).filter((i) => own(s.ways[i]) && whole[i] < Math.max(...whole) / 4);
    if (shown.length === 0 || shown.length === s.ways.length) {
      canvas.parentNode.remove();
      return;
    }
    const parts = s.freeze.map((part) => ({ label: part.label, data: shown.map((i) => part.data[i]) }));
    bars(canvas, "the same, of the short ones only", shown.map((i) => s.ways[i]), parts, seconds);
  };

  const lines = (canvas, traces) => {
    const first = (t) => t.way === "godwit auto" || t.way === "godwit cold" || !own(t.way);
    const any = traces.some(first);
    canvas.parentNode.style.height = "340px";
    new Chart(canvas, {
      type: "line",
      data: {
        datasets: traces.map((t, i) => ({
          label: t.way,
          hidden: any && !first(t),
          data: t.points.map((p) => ({ x: p[0], y: Math.max(p[1], 1e-4) })),
          borderColor: palette[i % palette.length],
          backgroundColor: palette[i % palette.length],
          borderWidth: 1.5,
          pointRadius: 1.5,
        })),
      },
      options: options("how long the client waits for each answer, in the first run of each way (log scale; click a name to show or hide it)", seconds, {
        indexAxis: "x",
        parsing: false,
        scales: {
          x: { type: "linear", title: { display: true, text: "seconds since the request" } },
          y: { type: "logarithmic", title: { display: true, text: "answered in" }, ticks: { callback: seconds, maxTicksLimit: 8 } },
        },
      }),
    });
  };

  const overview = (canvas) => {
    const all = parsed("overview-data");
    canvas.parentNode.style.height = 100 + 19 * all.labels.length * all.series.length + "px";
    const colours = { published: "#bab0ac", "Godwit, by itself": "#2a5d9f", "Godwit, staged before": "#76b7b2" };
    new Chart(canvas, {
      type: "bar",
      data: {
        labels: all.labels,
        datasets: all.series.map((s) => ({
          label: s.label,
          data: s.data.map((v) => v || null),
          backgroundColor: colours[s.label] || "#f28e2b",
          skipNull: true,
        })),
      },
      options: options("how long it stands still (log scale: each line is ten times the one before)", seconds, {
        scales: {
          x: { type: "logarithmic", min: 0.01, ticks: { callback: (v) => (Number.isInteger(Math.log10(v)) ? seconds(v) : "") } },
          y: { ticks: { autoSkip: false } },
        },
      }),
      plugins: [values(seconds, (chart, i, k) => chart.data.datasets[i].data[k] || 0)],
    });
  };

  overview(document.getElementById("overview"));
  sections.forEach((s, i) => {
    const canvas = (name) => document.getElementById(name + "-" + i);
    bars(canvas("freeze"), "how long it stands still, by phase", s.ways, s.freeze, seconds);
    closer(canvas("close"), s);
    bars(canvas("total"), "the whole time, by phase", s.ways, s.total, seconds);
    bars(canvas("bytes"), "what was sent, and when", s.ways, s.bytes, megabytes);
    if (s.traces) {
      lines(canvas("client"), s.traces);
    } else {
      canvas("client").parentNode.remove();
    }
  });
})();
