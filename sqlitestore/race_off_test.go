//go:build !race

package sqlitestore

const raceDetector = false
