package kakutei

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Do runs fn once for op and returns what it returned, now or the first time:
// for queues, jobs and RPC. T goes through encoding/json; a replay is what JSON
// preserves of it.
//
// An error of fn is returned as it is, and the attempt ends without a final
// answer: the recovery in p decides what the next call does. Wrapped in
// [NoEffect], it lets the operation run again under every recovery. A business
// refusal that is to stand (a declined card) belongs into T, not into the error.
//
// All other errors are those of [Engine.Run]. If the store was lost after fn had
// returned, Do returns the value together with an [*Error] of kind
// [ErrUnavailable]: the effect happened and is not recorded.
func Do[T any](ctx context.Context, e *Engine, op Operation, p Policy, fn func(ctx context.Context) (T, error)) (T, error) {
	var value, zero T
	var fnErr error
	answer, err := e.Run(ctx, op, p, func(ctx context.Context) Ending {
		value, fnErr = fn(ctx)
		if fnErr != nil {
			var none noEffectError
			if errors.As(fnErr, &none) {
				return Ending{Finality: FinalityNoEffect}
			}
			return Ending{}
		}
		body, err := json.Marshal(value)
		if err != nil {
			fnErr = fmt.Errorf("encode the result for its record: %w", err)
			return Ending{}
		}
		return Ending{Finality: FinalityFinal, Result: Result{Body: body}}
	})
	switch {
	case err != nil:
		return zero, err
	case answer.Replayed:
		if err := json.Unmarshal(answer.Result.Body, &value); err != nil {
			return zero, e.Unreadable(ctx, op.ID(), fmt.Errorf("decode the recorded result: %w", err))
		}
		return value, nil
	case fnErr != nil:
		return value, fnErr
	case answer.Unrecorded:
		return value, &Error{Kind: ErrUnavailable, ID: op.ID(), RetryAfter: time.Second, Cause: errors.New("the function ran, but its result is not recorded")}
	}
	return value, nil
}
