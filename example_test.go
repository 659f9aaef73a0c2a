package kakutei_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/memstore"
)

type charge struct {
	ID     string
	Amount int
}

// A job queue delivers a message twice. The card is charged once, and both
// deliveries get the same charge.
func ExampleDo() {
	ctx := context.Background()
	engine, err := kakutei.New(memstore.New(), kakutei.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close(ctx)

	deliver := func(orderID string, amount int) {
		op := kakutei.Operation{
			Scope:       "shop-7", // from who the caller is, never from what it says
			Key:         "charge-" + orderID,
			Fingerprint: kakutei.FingerprintOf([]byte(orderID), fmt.Append(nil, amount)),
		}
		c, err := kakutei.Do(ctx, engine, op, kakutei.Policy{Recovery: kakutei.Hold}, func(ctx context.Context) (charge, error) {
			fmt.Println("charging the card")
			return charge{ID: "ch_1", Amount: amount}, nil
		})
		switch {
		case errors.Is(err, kakutei.ErrMismatch):
			fmt.Println("refused: this order was charged with another amount")
		case err != nil:
			fmt.Println(err)
		default:
			fmt.Println(c.ID, c.Amount)
		}
	}
	deliver("1001", 500)
	deliver("1001", 500)
	deliver("1001", 900)
	// Output:
	// charging the card
	// ch_1 500
	// ch_1 500
	// refused: this order was charged with another amount
}

// The function has written nothing yet when it fails, and says so: the next
// call runs, although the policy holds what ended without an answer.
func ExampleNoEffect() {
	ctx := context.Background()
	engine, err := kakutei.New(memstore.New(), kakutei.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close(ctx)

	op := kakutei.Operation{Scope: "shop-7", Key: "k", Fingerprint: kakutei.FingerprintOf([]byte("order 1001"))}
	for _, online := range []bool{false, true} {
		id, err := kakutei.Do(ctx, engine, op, kakutei.Policy{Recovery: kakutei.Hold}, func(ctx context.Context) (string, error) {
			if !online {
				return "", kakutei.NoEffect(errors.New("no connection to the provider"))
			}
			return "ch_1", nil
		})
		fmt.Printf("%q %v\n", id, err)
	}
	// Output:
	// "" no connection to the provider
	// "ch_1" <nil>
}

// Run is what Do and the HTTP middleware are made of: the answer is bytes, and
// the function says itself whether it is final.
func ExampleEngine_Run() {
	ctx := context.Background()
	engine, err := kakutei.New(memstore.New(), kakutei.Options{Lease: 10 * time.Second})
	if err != nil {
		panic(err)
	}
	defer engine.Close(ctx)

	op := kakutei.Operation{
		Scope: "shop-7", Key: "k",
		Fingerprint: kakutei.Request{Method: "POST", Path: "/orders", ContentType: "application/json", Body: []byte(`{}`)}.Fingerprint(),
	}
	for range 2 {
		answer, err := engine.Run(ctx, op, kakutei.Policy{Recovery: kakutei.Rerun}, func(ctx context.Context) kakutei.Ending {
			return kakutei.Ending{
				Finality: kakutei.FinalityFinal,
				Result:   kakutei.Result{Code: 201, Body: fmt.Appendf(nil, "order by attempt %d", kakutei.FromContext(ctx).Number())},
			}
		})
		fmt.Println(answer.Result.Code, string(answer.Result.Body), answer.Replayed, err)
	}
	// Output:
	// 201 order by attempt 1 false <nil>
	// 201 order by attempt 1 true <nil>
}
