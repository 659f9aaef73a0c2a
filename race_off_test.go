//go:build !race

package kakutei_test

const raceDetector = false
