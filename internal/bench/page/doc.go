// Package page makes one HTML file of a result of the suite studies, with charts, which needs
// nothing else: no network, no other file.
//
// The charts are drawn by Chart.js 4.6.1 (MIT licence, chart.LICENSE.md), which is the file
// dist/chart.umd.min.js of the npm package chart.js without its last line, which names a file for
// debuggers.
package page
