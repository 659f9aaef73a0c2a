package demo

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"time"
)

const (
	// slowDelay gives the demo time to do something while a charge is under way.
	slowDelay = 1500 * time.Millisecond
	// longDelay is longer than anybody waits for a charge.
	longDelay = 30 * time.Second
	// patience is how long a client asks again that is told to wait, beyond the
	// lease.
	patience = 15 * time.Second
)

// stage is where the scenarios of one layer are played: a server of the shop,
// the provider, and clients.
type stage struct {
	layer    layer
	lease    time.Duration
	sabotage bool
	command  []string
	dir      string
	ledger   *ledger
	client   *client
	server   *process
}

// start starts the shop's server, again on the database that it had.
func (s *stage) start(ctx context.Context) error {
	server, err := startProcess(ctx, s.command, serverConfig{
		layer: s.layer.name, provider: s.ledger.url, lease: s.lease, sabotage: s.sabotage,
		database: filepath.Join(s.dir, s.layer.name+".db"),
	}.args())
	if err != nil {
		return err
	}
	s.server = server
	return nil
}

// act is one scenario on its stage.
type act struct {
	*stage
	order order
	story story
	fault string // what was seen of it
	// told are the charges that clients were told of.
	told []string
}

func (s *stage) newAct(sc scenario) *act {
	id := s.layer.name + "-" + sc.name
	return &act{stage: s, order: order{key: "key-of-" + id, id: id, amount: 100}}
}

// tell notes what clients were told.
func (a *act) tell(when string, answers ...answer) {
	a.story.add(when, answers...)
	for _, an := range answers {
		if an.charge != "" && !slices.Contains(a.told, an.charge) {
			a.told = append(a.told, an.charge)
		}
	}
}

func (a *act) send(ctx context.Context, o order) answer {
	return a.client.send(ctx, a.server.url, o)
}

func (a *act) burst(ctx context.Context, o order, n int) []answer {
	return a.client.burst(ctx, a.server.url, o, n)
}

// midCharge sends the order and returns when the provider has confirmed the
// charge and not yet answered the shop, which it does after delay.
func (a *act) midCharge(ctx context.Context, delay time.Duration) (first <-chan answer, made charge, err error) {
	if err := a.ledger.delay(ctx, a.order.id, delay); err != nil {
		return nil, charge{}, err
	}
	first = a.client.begin(ctx, a.server.url, a.order)
	made, err = a.ledger.confirm(ctx, a.order.id)
	return first, made, err
}

// otherOrder is another request under the same key.
func (a *act) otherOrder() order {
	o := a.order
	o.amount *= 9
	return o
}

// again sends the order once more, as the retry of a client.
func (a *act) again(ctx context.Context) error {
	return a.follow(ctx, "retry", a.order, a.burst(ctx, a.order, 1))
}

// follow does what a client does with its answers: who is told to wait waits
// and sends again, until all are told something that they can go by.
func (a *act) follow(ctx context.Context, when string, o order, answers []answer) error {
	deadline := time.Now().Add(a.lease + patience)
	for {
		a.tell(when, answers...)
		var wait time.Duration
		waiting := 0
		for _, an := range answers {
			switch {
			case an.retryAfter > 0:
				wait = max(wait, an.retryAfter)
				waiting++
			case an.status == 0, an.status >= http.StatusInternalServerError:
				return fmt.Errorf("a client was told %q", an.text)
			}
		}
		switch {
		case waiting == 0:
			return nil
		case time.Now().Add(wait).After(deadline):
			return fmt.Errorf("clients are still told to wait after %v", a.lease+patience)
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		when = "retry"
		answers = a.burst(ctx, o, waiting)
	}
}
