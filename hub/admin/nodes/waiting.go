package nodes

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sort"
	"time"

	certv1 "k8s.io/api/certificates/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

type joinRequest = certv1.CertificateSigningRequest

// RequestActions are what an administrator decides about devices that wait to join.
func RequestActions(now func() time.Time) []*frame.Action {
	all := []*frame.Action{
		{Name: "approve", Quick: true, Label: "Approve", Done: "is approved",
			Means: "The device gets its certificate at its next request, within seconds, and is the node from then on.",
			Do:    decide(now, certv1.CertificateApproved)},
		{Name: "deny", Quick: true, Label: "Deny", Done: "is denied", Means: "The device is refused, and stops asking.",
			Destroy: true, Do: decide(now, certv1.CertificateDenied)},
	}
	for _, a := range all {
		a.Kind, a.One, a.Verb, a.Resource = state.JoinRequests, "request", "patch",
			"certificatesigningrequests/approval"
		a.List, a.Listed = frame.WaitingPath, "Waiting devices"
		a.Idle = func(o state.Object) string {
			return frame.If(state.DecisionOn(o.(*joinRequest)) != state.RequestPending, "was decided already")
		}
	}
	return all
}

func decide(now func() time.Time, t certv1.RequestConditionType) func(context.Context, *frame.Worker,
	state.Object) (frame.Undo, error) {
	return func(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
		at := now().UTC().Truncate(time.Second)
		return nil, w.Send(ctx, frame.APICall{Method: http.MethodPatch,
			Path: frame.ObjectURL(state.JoinRequests, "", o.GetName()) + "/approval", Media: frame.MergePatch},
			frame.JSON{
				// exactly the request that the administrator saw
				"metadata": frame.JSON{"uid": o.GetUID(), "resourceVersion": o.GetResourceVersion()},
				"status": frame.JSON{"conditions": []frame.JSON{{"type": t, "status": "True", "reason": "AdminPage",
					"message": "This was decided on the hub's page.", "lastUpdateTime": at}}},
			})
	}
}

// PendingRequests returns the undecided requests, the oldest first.
func PendingRequests(s state.Snapshot) (list []*joinRequest) {
	for r := range state.Each[*joinRequest](s, state.JoinRequests, "") {
		if state.DecisionOn(r) == state.RequestPending {
			list = append(list, r)
		}
	}
	slices.SortStableFunc(list, func(x, y *joinRequest) int {
		return x.CreationTimestamp.Compare(y.CreationTimestamp.Time)
	})
	return list
}

// decidedRequests returns the decided requests, the newest decision first.
func decidedRequests(s state.Snapshot) (list []*joinRequest) {
	for r := range state.Each[*joinRequest](s, state.JoinRequests, "") {
		if state.DecisionOn(r) != state.RequestPending {
			list = append(list, r)
		}
	}
	sort.SliceStable(list, func(i, j int) bool { return decidedAt(list[i]).After(decidedAt(list[j])) })
	return list
}

// decidedAt returns when a request was decided; without a condition, when it was made.
func decidedAt(r *joinRequest) time.Time {
	at := r.CreationTimestamp.Time
	for i := range r.Status.Conditions {
		if t := r.Status.Conditions[i].LastTransitionTime.Time; t.After(at) {
			at = t
		}
	}
	return at
}

// A waitingRow is a device that asks to join.
type waitingRow struct {
	Name, Node, NodeHref string
	Site, Machine        string
	Serial, Source       string
	Token                string
	Age, Ends            *format.Moment
	Pill                 frame.Pill
	Menu                 frame.Menu
}

type waitingData struct {
	Did     *frame.Done
	Rows    []waitingRow
	Decided []waitingRow
	More    int // number of waiting devices that are not shown
	Bulk    frame.Menu
}

// WaitingDevices lists the devices that wait for an administrator's approval.
func WaitingDevices(a *frame.Request) (frame.Page, error) {
	d := waitingData{Did: frame.JustDone(a)}
	pending := PendingRequests(a.Snapshot)
	d.More = max(0, len(pending)-frame.PerPage)
	for _, r := range pending[:len(pending)-d.More] {
		d.Rows = append(d.Rows, waitingRowOf(a, r))
	}
	decided := decidedRequests(a.Snapshot)
	for _, r := range decided[:min(len(decided), frame.PerPage)] {
		d.Decided = append(d.Decided, waitingRowOf(a, r))
	}
	if len(pending) > 1 {
		d.Bulk = frame.BulkMenu(a, state.JoinRequests, len(pending), nil)
	}
	return frame.Page{Template: "waiting", Title: "Waiting devices", Watch: []string{"requests"}, Data: d}, nil
}

func waitingRowOf(a *frame.Request, r *joinRequest) waitingRow {
	said := r.Annotations
	row := waitingRow{
		Name: r.Name, Node: said[state.RequestNode], Site: said[state.RequestSite], Source: said[state.RequestSource],
		Machine: cmp.Or(said[state.RequestMachine], "unknown"), Serial: cmp.Or(said[state.RequestSerial], "unknown"),
		Token: r.Spec.Username,
		Age:   format.Time(r.CreationTimestamp.Time, a.Now), Ends: format.Time(state.RequestEnds(a.Snapshot, r), a.Now),
		Menu: frame.MenuOf(a, r), Pill: requestPill(r),
	}
	if a.Node(row.Node) != nil {
		row.NodeHref = frame.NodeHref(row.Node)
	}
	return row
}

func requestPill(r *joinRequest) frame.Pill {
	switch state.DecisionOn(r) {
	case state.RequestApproved:
		return frame.Pill{Kind: "ok", Text: "Approved"}
	case state.RequestIssued:
		return frame.Pill{Kind: "ok", Text: "Has joined"}
	case state.RequestDenied:
		return frame.Pill{Kind: "idle", Text: "Denied"}
	}
	return frame.Pill{Kind: "warn", Text: "Waits"}
}

// WaitingCount returns how many devices wait; 0 for roles that may not see them.
func WaitingCount(a *frame.Request) int {
	if !a.May("list", "certificatesigningrequests") {
		return 0
	}
	return len(PendingRequests(a.Snapshot))
}
