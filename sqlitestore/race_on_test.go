//go:build race

package sqlitestore

// raceDetector makes SQLite, which is Go here, about ten times slower.
const raceDetector = true
