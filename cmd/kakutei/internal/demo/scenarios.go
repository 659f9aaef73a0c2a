package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// scenario is a row of the table.
type scenario struct {
	name  string
	title string
	play  func(ctx context.Context, a *act) error
}

// rightCharges is what every scenario should cost the customer: one order is
// placed, however often it is sent.
const rightCharges = 1

// scenarios returns the rows in their order.
func scenarios() []scenario {
	return []scenario{
		{"concurrent", "50 requests at once", concurrent},
		{"mismatch", "another amount in mid-charge", mismatch},
		{"retry", "retry after the answer", retry},
		{"kill", "kill -9 after the charge", kill},
		{"panic", "panic after the charge", panics},
		{"disconnect", "client hangs up in mid-charge", disconnect},
		{"outlive", "charge takes longer than the lease", outlive},
	}
}

// errNoFault marks a scenario in which what was to go wrong did not.
var errNoFault = errors.New("the fault did not happen")

func noFault(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errNoFault}, args...)...)
}

// concurrent sends one order from many clients at the same time.
func concurrent(ctx context.Context, a *act) error {
	const clients = 50
	answers := a.burst(ctx, a.order, clients)
	var first time.Time // when the order was first answered
	for _, an := range answers {
		if an.charge != "" && (first.IsZero() || an.received.Before(first)) {
			first = an.received
		}
	}
	together := 0
	for _, an := range answers {
		if !an.sent.IsZero() && an.sent.Before(first) {
			together++
		}
	}
	if together < 2 {
		return noFault("only %d of %d requests were sent before the first was answered with a charge", together, clients)
	}
	a.fault = fmt.Sprintf("%d of %d requests were sent before the first was answered with a charge", together, clients)
	return a.follow(ctx, "at once", a.order, answers)
}

// mismatch sends another request under the same key while the first is under way.
func mismatch(ctx context.Context, a *act) error {
	first, made, err := a.midCharge(ctx, slowDelay)
	if err != nil {
		return err
	}
	other := a.send(ctx, a.otherOrder())
	a.tell("other amount", other)
	reply := <-first
	if !other.sent.Before(reply.received) {
		return noFault("the charge was answered before another amount was asked for")
	}
	a.fault = fmt.Sprintf("the provider had confirmed %s, and the shop had not answered, when another amount was asked for", made.ID)
	if a.layer.name != layerNaive && other.status != http.StatusUnprocessableEntity {
		return fmt.Errorf("another amount under the same key was answered with %q", other.text)
	}
	if err := a.follow(ctx, "first", a.order, []answer{reply}); err != nil {
		return err
	}
	return a.again(ctx)
}

// retry sends an order again that was answered, and another one under its key.
// Nothing goes wrong here.
func retry(ctx context.Context, a *act) error {
	if err := a.follow(ctx, "first", a.order, a.burst(ctx, a.order, 1)); err != nil {
		return err
	}
	a.fault = "none: the order was answered before it was sent again"
	if err := a.again(ctx); err != nil {
		return err
	}
	other := a.send(ctx, a.otherOrder())
	a.tell("other amount", other)
	if other.status != http.StatusUnprocessableEntity {
		return fmt.Errorf("another amount under the same key was answered with %q", other.text)
	}
	return nil
}

// kill ends the shop's server between the charge and its answer.
func kill(ctx context.Context, a *act) error {
	first, made, err := a.midCharge(ctx, longDelay)
	if err != nil {
		return err
	}
	pid := a.server.cmd.Process.Pid
	if err := a.server.kill(); err != nil {
		return noFault("%v", err)
	}
	reply := <-first
	if reply.status != 0 {
		return noFault("the server answered %q before it was killed", reply.text)
	}
	a.tell("first", reply)
	a.fault = fmt.Sprintf("the provider confirmed %s; then process %d ended: %v", made.ID, pid, a.server.cmd.ProcessState)
	if err := a.start(ctx); err != nil {
		return err
	}
	return a.again(ctx)
}

// panics lets the shop's handler panic between the charge and its answer.
func panics(ctx context.Context, a *act) error {
	broken := a.order
	broken.fault = "panic"
	reply := a.send(ctx, broken)
	if reply.status != 0 {
		return noFault("the server answered %q", reply.text)
	}
	a.tell("first", reply)
	made, err := a.ledger.confirm(ctx, a.order.id)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, confirmTime)
	defer cancel()
	if err := until(limited, func() (bool, error) {
		return strings.Contains(a.server.stderr.String(), panicText), nil
	}); err != nil {
		return noFault("the server's log does not speak of the panic")
	}
	a.fault = fmt.Sprintf("the provider confirmed %s; the server's log shows the panic", made.ID)
	return a.again(ctx)
}

// disconnect lets the client hang up between the charge and its answer.
func disconnect(ctx context.Context, a *act) error {
	impatient, hangUp := context.WithCancel(ctx)
	defer hangUp()
	first, made, err := a.midCharge(impatient, slowDelay)
	if err != nil {
		return err
	}
	hangUp()
	reply := <-first
	if reply.status != 0 {
		return noFault("the server answered %q before the client hung up", reply.text)
	}
	a.tell("first", reply)
	a.fault = fmt.Sprintf("the provider confirmed %s; then the client closed its connection without an answer", made.ID)
	return a.again(ctx)
}

// outlive lets a charge take longer than the lease, with duplicates meanwhile.
func outlive(ctx context.Context, a *act) error {
	first, made, err := a.midCharge(ctx, a.lease*5/2)
	if err != nil {
		return err
	}
	charged := time.Now()
	var duplicates []answer
	for _, after := range []time.Duration{a.lease / 4, a.lease * 5 / 4, a.lease * 7 / 4} {
		if err := sleep(ctx, time.Until(charged.Add(after))); err != nil {
			return err
		}
		duplicate := a.send(ctx, a.order)
		a.tell("meanwhile", duplicate)
		duplicates = append(duplicates, duplicate)
	}
	reply := <-first
	took, late := reply.received.Sub(reply.sent), 0
	for _, d := range duplicates {
		if d.sent.Sub(reply.sent) > a.lease && d.sent.Before(reply.received) {
			late++
		}
	}
	if late == 0 {
		return noFault("the charge took %v with a lease of %v, and no duplicate came after that, before the answer", took.Round(time.Millisecond), a.lease)
	}
	a.fault = fmt.Sprintf("%s took %v with a lease of %v; %d duplicates came after the time of the lease, before the answer",
		made.ID, took.Round(time.Millisecond), a.lease, late)
	if err := a.follow(ctx, "first", a.order, []answer{reply}); err != nil {
		return err
	}
	return a.again(ctx)
}
