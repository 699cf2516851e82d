package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/e2e/harness"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// firmwareAttacks use boot configurations: invalid objects, and boards that send false reports.
func firmwareAttacks() []attack {
	return []attack{
		{name: "hostile-rollouts", by: "administrator", does: "invalid rollouts and board profiles, and " +
			"good ones changed in the middle", run: hostileRollouts},
		{name: "lying-board", by: "device", does: "reports wrong boot configurations, flaps, and names " +
			"other nodes and digests", run: lyingBoard},
	}
}

const (
	flotillaAPI = "/apis/flotilla.dev/v1alpha1"
	rolloutsAPI = flotillaAPI + "/firmwarerollouts"
	profilesAPI = flotillaAPI + "/boardprofiles"
	strict      = "?fieldValidation=Strict"
	evilBoard   = "evil,board"
)

func rolloutOf(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"flotilla.dev/v1alpha1","kind":"FirmwareRollout","metadata":{"name":%q},"spec":{"profile":"evil","selector":{"matchLabels":{"kubernetes.io/os":"linux"}}%s}}`, name, spec)
}

func profileOf(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"flotilla.dev/v1alpha1","kind":"BoardProfile","metadata":{"name":%q},"spec":{"match":{"compatible":[%q]}%s}}`, name, evilBoard, spec)
}

// boots returns a profile with a boot configuration for a Raspberry Pi.
func boots(boot string) string {
	return profileOf("evil", `,"boot":{"backend":"rpi-config-txt"`+boot+`}`)
}

func counted(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i+1)
	}
	return b.String()
}

// refused creates each object, and expects a refusal in one short sentence.
func refused(ctx context.Context, a *harness.Hub, path string, objects map[string]string) error {
	for what, body := range objects {
		code, answer, err := a.Call(ctx, a.Admin, http.MethodPost, path+strict, "application/json", body)
		var status struct{ Message string }
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", what, err)
		case code/100 != 4:
			return fmt.Errorf("%s: %d %.200s", what, code, answer)
		case json.Unmarshal([]byte(answer), &status) != nil || status.Message == "":
			return fmt.Errorf("%s: refused without a sentence: %.200s", what, answer)
		case len(status.Message) > 2000 || strings.ContainsFunc(status.Message, func(r rune) bool {
			return r < ' ' && r != '\n' || r == 0x7f
		}):
			return fmt.Errorf("%s: refused with %d bytes: %.300q", what, len(status.Message), status.Message)
		}
	}
	return nil
}

func rollout(ctx context.Context, a *harness.Hub, name string) (r fleet.FirmwareRollout, err error) {
	body, err := a.Get(ctx, rolloutsAPI+"/"+name)
	if err == nil {
		err = json.Unmarshal([]byte(body), &r)
	}
	return r, err
}

// patch sends a merge patch as the administrator. The response must have this code.
func patch(ctx context.Context, a *harness.Hub, path, body string, want int) error {
	code, answer, err := a.Call(ctx, a.Admin, http.MethodPatch, path, "application/merge-patch+json", body)
	if err == nil && code != want {
		err = fmt.Errorf("PATCH %s %s: %d: %.300s", path, body, code, answer)
	}
	return err
}

// board joins a device that reports a board at a site.
func board(ctx context.Context, a *harness.Hub, name, site, machine string) (*harness.Device, *harness.Link, error) {
	token, err := a.Token(ctx, "--site", site)
	if err != nil {
		return nil, nil, err
	}
	d, err := a.Join(ctx, token, name, machine)
	if err != nil {
		return nil, nil, err
	}
	l, err := d.Connect(ctx, d.ClientID())
	if err != nil {
		return nil, nil, err
	}
	return d, l, reportsBoot(ctx, d, l, map[string]any{"state": "UpToDate"})
}

// reportsBoot reports a boot configuration and renews the lease.
func reportsBoot(ctx context.Context, d *harness.Device, l *harness.Link, firmware any) error {
	fields := map[string]any{"hardware": map[string]any{"board": map[string]any{"compatible": []string{evilBoard}}},
		"firmware": firmware}
	if err := l.PublishAcked(ctx, "status", d.Good(nil, fields)); err != nil {
		return err
	}
	d.Lease++ // acknowledges generation 0; after a newer generation the hub would wait for resume
	return l.Send(harness.Packet(0x30,
		append(harness.Text(nil, l.Prefix+"lease"),
			wire.AppendLease(nil, wire.Lease{Boot: d.Boot, Seq: d.Lease, Status: d.Seq, Time: time.Now()})...)))
}

func hostileRollouts(ctx context.Context, a *harness.Hub) (string, error) {
	if err := errors.Join(refused(ctx, a, rolloutsAPI, refusedRollouts),
		refused(ctx, a, profilesAPI, refusedProfiles)); err != nil {
		return "", err
	}
	d, l, err := board(ctx, a, "pi", "oslo", "00000000000000c3")
	if err != nil {
		return "", err
	}
	defer l.Close()
	lied := strings.Replace(rolloutOf("first", `,"paused":true`), `"spec":`,
		`"status":{"phase":"Complete","kept":7,"digest":"sha256:0","document":"{}","batches":[{"number":1,"site":"oslo","nodes":["pi"],"kept":9}]},"spec":`, 1)
	const path = rolloutsAPI + "/first"
	is := func(what string, so func(*fleet.FirmwareRollout) bool) error {
		var last fleet.FirmwareRolloutStatus
		return errors.Join(harness.Until(ctx, 20*time.Second, what, func() (bool, error) {
			r, err := rollout(ctx, a, "first")
			last = r.Status
			if err == nil && !so(&r) {
				err = fmt.Errorf("its message is %s: %s", last.Phase, last.Sentence)
			}
			return err == nil, err
		}))
	}
	if err := errors.Join(
		a.Create(ctx, profilesAPI+strict, boots(`,"cmdline":{"add":["quiet"]}`)),
		a.Create(ctx, rolloutsAPI+strict, lied),
		is("a status that came with the spec is ignored", func(r *fleet.FirmwareRollout) bool {
			return r.Status.Phase == fleet.RolloutPaused && r.Status.Kept == 0 && r.Status.Nodes == 1 &&
				len(r.Status.Batches) == 0 && r.Status.Document != "{}"
		}),
		patch(ctx, a, path, `{"status":{"phase":"Complete","kept":7}}`, http.StatusOK),
		patch(ctx, a, path, `{"spec":{"profile":"raspberrypi-4"}}`, http.StatusUnprocessableEntity),
		patch(ctx, a, path, `{"spec":{"retry":5}}`, http.StatusOK),
		patch(ctx, a, path, `{"spec":{"retry":4}}`, http.StatusUnprocessableEntity),
		patch(ctx, a, path+"/status",
			`{"status":{"document":"{\"profile\":\"x\",\"revision\":0,\"backend\":\"rpi-config-txt\",\"cmdline\":{\"add\":[\"init=/bin/sh\"]}}"}}`, http.StatusUnprocessableEntity),
	); err != nil {
		return "", err
	}
	r, err := rollout(ctx, a, "first")
	if err != nil || r.Status.Kept != 0 {
		return "", fmt.Errorf("a status that was written with the spec is shown: %+v %w", r.Status, err)
	}
	for role, who := range map[string]string{"viewer": "vera", "operator": "ola"} {
		c, err := a.As(ctx, role, who)
		if err != nil {
			return "", err
		}
		for _, ask := range []struct{ method, path, kind, body string }{
			{http.MethodPost, rolloutsAPI, "application/json", rolloutOf("mine", "")},
			{http.MethodPatch, path, "application/merge-patch+json", `{"spec":{"undo":true}}`},
			{http.MethodDelete, path, "", ""},
			{http.MethodPatch, path + "/status", "application/merge-patch+json", `{"status":{"kept":7}}`},
			{http.MethodPatch, profilesAPI + "/evil", "application/merge-patch+json", `{"spec":{"boot":null}}`},
		} {
			if code, answer, err := a.Call(ctx, c, ask.method, ask.path, ask.kind, ask.body); err != nil ||
				code != http.StatusForbidden {
				return "", fmt.Errorf("a %s's %s %s: %d %.100s %w", role, ask.method, ask.path, code, answer, err)
			}
		}
	}

	// During a rollout the profile changes, is deleted and is created again. A second rollout
	// selects the same node. undo is requested twice, the second time for a stopped rollout.
	if err := reportsBoot(ctx, d, l,
		map[string]any{"state": "Staged", "candidate": r.Status.Digest, "bad": []string{r.Status.Digest}}); err != nil {
		return "", err
	}
	old := r.Status.Digest
	remove := func(path string) error {
		code, answer, err := a.Call(ctx, a.Admin, http.MethodDelete, path, "", "")
		if err == nil && code/100 != 2 {
			err = fmt.Errorf("DELETE %s: %d %.200s", path, code, answer)
		}
		return err
	}
	return fmt.Sprintf("%d rollouts and %d profiles refused, each with a sentence", len(refusedRollouts),
			len(refusedProfiles)), errors.Join(
			patch(ctx, a, profilesAPI+"/evil", `{"spec":{"boot":{"cmdline":{"add":["quiet","splash"]}}}}`, http.StatusOK),
			is("a changed profile is rolled out", func(r *fleet.FirmwareRollout) bool {
				return r.Status.Digest != old && r.Status.Digest != ""
			}),
			a.Create(ctx, rolloutsAPI, rolloutOf("second", "")),
			harness.Until(ctx, 10*time.Second, "the younger rollout has no node", func() (bool, error) {
				r, err := rollout(ctx, a, "second")
				return r.Status.Nodes == 0 && strings.Contains(r.Status.Sentence, "first"), err
			}),
			remove(profilesAPI+"/evil"),
			is("the rollout's status says that the profile is missing or matches no node", func(r *fleet.FirmwareRollout) bool {
				return r.Status.Phase == fleet.RolloutPending
			}),
			patch(ctx, a, path, `{"spec":{"undo":true,"paused":false,"pauseOnFailure":true}}`, http.StatusOK),
			patch(ctx, a, path, `{"spec":{"undo":true}}`, http.StatusOK),
			is("the rollout is undone, because no node has the profile", func(r *fleet.FirmwareRollout) bool { return r.Status.Undoing }),
			patch(ctx, a, path, `{"spec":{"undo":false,"undone":true}}`, http.StatusOK), // the hub ignores an unknown field
			a.Create(ctx, profilesAPI+strict, boots(`,"cmdline":{"add":["quiet"]}`)),
			is("it continues", func(r *fleet.FirmwareRollout) bool {
				return !r.Status.Undoing && r.Status.Digest != ""
			}),
			remove(path), remove(rolloutsAPI+"/second"),
		)
}

// lyingBoard has one board on each of two sites. One of them sends false reports.
func lyingBoard(ctx context.Context, a *harness.Hub) (string, error) {
	evil, l, err := board(ctx, a, "evil", "bergen", "00000000000000ee")
	if err != nil {
		return "", err
	}
	defer l.Close()
	honest, m, err := board(ctx, a, "honest", "oslo", "00000000000000c4")
	if err != nil {
		return "", err
	}
	defer m.Close()
	if err := errors.Join(a.Create(ctx, profilesAPI+strict, boots(`,"cmdline":{"add":["quiet"]}`)),
		a.Create(ctx, rolloutsAPI+strict,
			rolloutOf("r", `,"batchSize":100,"maxUnavailablePerSite":100,"pauseOnFailure":false,"successThreshold":1`))); err != nil {
		return "", err
	}
	var digest string
	if err := harness.Until(ctx, 20*time.Second, "both have a desired state", func() (bool, error) {
		r, err := rollout(ctx, a, "r")
		digest = r.Status.Digest
		return digest != "" && r.Status.Nodes == 2, err
	}); err != nil {
		return "", err
	}
	if err := reportsBoot(ctx, evil, l, map[string]any{"state": "Staged", "candidate": digest}); err != nil {
		return "", err
	}
	if err := harness.Until(ctx, 20*time.Second, "the liar has its turn", func() (bool, error) {
		r, err := rollout(ctx, a, "r")
		if err == nil && r.Status.Trying != 1 {
			err = fmt.Errorf("%s: %s %+v", r.Status.Phase, r.Status.Sentence, r.Status.NodeStates)
		}
		return err == nil, err
	}); err != nil {
		return "", err
	}
	if err := reportsBoot(ctx, honest, m,
		map[string]any{"state": "Staged", "candidate": digest, "message": "it waits"}); err != nil {
		return "", err
	}
	other := "sha256:" + strings.Repeat("ab", 32)
	lies := []any{
		map[string]any{"state": "UpToDate", "digest": digest},                                       // reported before its turn
		map[string]any{"state": "Trial", "candidate": digest}, map[string]any{"state": "Verifying"}, // reported without a turn
		// a digest that the hub has never offered
		map[string]any{"state": "UpToDate", "digest": other, "candidate": other, "bad": []string{other, digest}},
		map[string]any{"state": "RolledBack", "candidate": digest, "bad": []string{digest}},
		map[string]any{"state": "Staged", "candidate": digest},
		map[string]any{"state": "Kept", "digest": digest}, map[string]any{"state": ""},
		map[string]any{"state": strings.Repeat("Staged", 10_000)},
		map[string]any{"state": "Staged", "candidate": digest,
			"message": strings.Repeat("<img src=x onerror=alert(1)>\u202e\n", 2000), "diff": strings.Repeat("+ x\n", 10_000),
			"backend": strings.Repeat("x", 5000), "trial": strings.Repeat("y", 5000)},
		map[string]any{"state": "Staged", "candidate": strings.Repeat("a", 60_000), "digest": "sha256:../../etc",
			"bad": slices.Repeat([]string{digest}, 900)},
		map[string]any{"state": "Staged", "node": "honest", "since": "1900-01-01T00:00:00Z", "candidate": digest},
		map[string]any{"state": "UpToDate", "since": "9999-12-31T23:59:59Z", "digest": digest},
		map[string]any{"state": 7}, map[string]any{"state": nil}, "Kept", []any{}, nil,
	}
	both := func(what string) error {
		r, err := rollout(ctx, a, "r")
		if err != nil {
			return err
		}
		sites := map[string]bool{}
		for _, n := range r.Status.NodeStates {
			if n.State == fleet.FirmwareDraining || n.State == fleet.FirmwareTrying || n.State == fleet.FirmwareOverdue {
				sites[n.Site] = true
			}
			if n.Name == "honest" && (n.State == fleet.FirmwareKept || n.State == fleet.FirmwareBad ||
				n.State == fleet.FirmwareUnsupported) {
				return fmt.Errorf("%s: the other node is %s", what, n.State)
			}
			if len(n.Message) > 2*wire.MaxFirmwareMessage {
				return fmt.Errorf("%s: a message of %d bytes", what, len(n.Message))
			}
		}
		if len(sites) > 1 {
			return fmt.Errorf("%s: two sites are at risk", what)
		}
		if size := len(mustJSON(r.Status)); size > 64<<10 {
			return fmt.Errorf("%s: the status has %d bytes", what, size)
		}
		return nil
	}
	sent := 0
	for round := range 6 {
		for i := range lies {
			lie := lies[(i*(round+1)*7+round)%len(lies)]
			if !l.Open() {
				if l, err = evil.Connect(ctx, evil.ClientID()); err != nil {
					return "", fmt.Errorf("the liar cannot reconnect: %w", err)
				}
			}
			_ = reportsBoot(ctx, evil, l, lie)
			sent++
			if err := both(fmt.Sprintf("after %.80s", mustJSON(lie))); err != nil {
				return "", err
			}
		}
		if err := reportsBoot(ctx, honest, m,
			map[string]any{"state": "Staged", "candidate": digest, "message": "it waits"}); err != nil {
			return "", err
		}
	}
	n, err := a.Node(ctx, "honest")
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == fleet.ConditionFirmwareReady
	})
	if i < 0 || n.Status.Conditions[i].Reason != "Staged" || n.Status.Conditions[i].Message != "it waits" {
		return "", fmt.Errorf("the other node's condition: %+v", n.Status.Conditions)
	}
	body, err := a.Get(ctx, "/api/v1/events?limit=5000&fieldSelector=involvedObject.name=evil,reason=FirmwareTurn")
	var list corev1.EventList
	if err == nil {
		err = json.Unmarshal([]byte(body), &list)
	}
	turns := 0
	for _, e := range list.Items {
		turns += int(max(e.Count, 1))
	}
	if err == nil && turns > 2 {
		err = fmt.Errorf("the liar was given %d turns", turns)
	}
	return fmt.Sprintf("%d lies, %d turns for it", sent, turns), err
}

func mustJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // a mistake in the attack's code
	}
	return string(text)
}
