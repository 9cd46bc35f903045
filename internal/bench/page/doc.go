// Package page makes one HTML file with charts from a result of the suite studies. The file is
// self-contained: it needs no network and no other file.
//
// Chart.js 4.6.1 (MIT licence, chart.LICENSE.md) draws the charts. It is the file dist/chart.umd.min.js of
// the npm package chart.js without its last line, which names a file for debuggers.
package page
