// What the curves say under the pointer.

function wireCharts(data, onEpoch) {
  for (const figure of document.querySelectorAll('.chart')) {
    const chart = data.charts[Number(figure.dataset.chart)];
    const plot = figure.querySelector('.plot');
    const cursor = figure.querySelector('.cursor');
    const values = figure.querySelectorAll('.legend b');
    const caption = figure.querySelector('figcaption');
    const title = caption.textContent;
    const [left, right] = chart.edges;
    const [first, last] = chart.range;

    const nearest = (event) => {
      const box = plot.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width - left) / (right - left);
      const wanted = first + share * (last - first);
      return chart.epochs.reduce((best, epoch, index) =>
        (Math.abs(epoch - wanted) < Math.abs(chart.epochs[best] - wanted) ? index : best), 0);
    };
    plot.addEventListener('pointermove', (event) => {
      const index = nearest(event);
      const share = (chart.epochs[index] - first) / (last - first);
      cursor.hidden = false;
      cursor.style.left = `${100 * (left + share * (right - left))}%`;
      caption.textContent = `${title} · epoch ${chart.epochs[index]}`;
      values.forEach((place, number) => {
        const value = chart.series[number][1][index];
        place.textContent = value === null ? '–' : String(Number(value.toPrecision(4))).replace('-', '−');
      });
    });
    plot.addEventListener('pointerleave', () => {
      cursor.hidden = true;
      caption.textContent = title;
      values.forEach((place) => { place.textContent = ''; });
    });
    plot.addEventListener('click', (event) => onEpoch(chart.epochs[nearest(event)]));
  }
}
