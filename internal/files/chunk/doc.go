// Package chunk cuts content into chunks where the content itself says so, and gives them digests.
// A byte that is inserted into a large file then changes one or two chunks, and all others are
// found again elsewhere.
//
// It is pure: it sees bytes, and knows neither files nor streams.
package chunk
