"use strict";
(() => {
  const sections = JSON.parse(document.getElementById("data").textContent);
  const palette = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac"];
  const seconds = (v) => (v < 1 ? (v * 1000).toPrecision(3) + " ms" : v.toPrecision(3) + " s");
  const megabytes = (v) => (v / 1e6).toPrecision(3) + " MB";
  Chart.defaults.font.size = 12;
  Chart.defaults.animation = false;

  const bars = (canvas, title, ways, stacks, show) => {
    const whole = ways.map((_, i) => stacks.reduce((sum, s) => sum + s.data[i], 0));
    canvas.parentNode.style.height = 90 + 24 * ways.length + "px";
    new Chart(canvas, {
      type: "bar",
      data: {
        labels: ways.map((way, i) => way + "  " + show(whole[i])),
        datasets: stacks.map((s, i) => ({ label: s.label, data: s.data, backgroundColor: palette[i % palette.length] })),
      },
      options: {
        indexAxis: "y",
        maintainAspectRatio: false,
        scales: { x: { stacked: true, ticks: { callback: show } }, y: { stacked: true } },
        plugins: {
          title: { display: true, text: title },
          legend: { position: "bottom", labels: { boxWidth: 12 } },
          tooltip: { callbacks: { label: (c) => c.dataset.label + ": " + show(c.raw) } },
        },
      },
    });
  };

  const lines = (canvas, traces) => {
    canvas.parentNode.style.height = "320px";
    new Chart(canvas, {
      type: "line",
      data: {
        datasets: traces.map((t, i) => ({
          label: t.way,
          data: t.points.map((p) => ({ x: p[0], y: Math.max(p[1], 1e-4) })),
          borderColor: palette[i % palette.length],
          backgroundColor: palette[i % palette.length],
          borderWidth: 1,
          pointRadius: 1.5,
        })),
      },
      options: {
        maintainAspectRatio: false,
        parsing: false,
        scales: {
          x: { type: "linear", title: { display: true, text: "seconds since the request" } },
          y: { type: "logarithmic", title: { display: true, text: "answered in" }, ticks: { callback: seconds, maxTicksLimit: 8 } },
        },
        plugins: {
          title: { display: true, text: "what the client waits for each answer, in the first run of each way" },
          legend: { position: "bottom", labels: { boxWidth: 12 } },
          tooltip: { callbacks: { label: (c) => c.dataset.label + ": " + seconds(c.raw.y) } },
        },
      },
    });
  };

  sections.forEach((s, i) => {
    const canvas = (name) => document.getElementById(name + "-" + i);
    bars(canvas("freeze"), "it stands still, by phase", s.ways, s.freeze, seconds);
    bars(canvas("total"), "the whole time", s.ways, s.total, seconds);
    bars(canvas("bytes"), "sent", s.ways, s.bytes, megabytes);
    if (s.traces) {
      lines(canvas("client"), s.traces);
    } else {
      canvas("client").parentNode.remove();
    }
  });
})();
