//go:build race

package kakutei_test

// raceDetector tells that everything takes ten times as long.
const raceDetector = true
