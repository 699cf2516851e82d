package admin

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sort"
	"time"

	certv1 "k8s.io/api/certificates/v1"

	"flotilla.dev/hub/state"
)

// waitingPath is where the devices that wait are.
const waitingPath = "/devices/waiting"

type joinRequest = certv1.CertificateSigningRequest

// requestActions are what an administrator decides about devices that wait to join.
func requestActions(now func() time.Time) []*action {
	all := []*action{
		{Name: "approve", quick: true, Label: "Approve", Done: "is approved", Means: "The device gets its certificate when it asks the next time, within seconds, and is the node from then on.", do: decide(now, certv1.CertificateApproved)},
		{Name: "deny", quick: true, Label: "Deny", Done: "is denied", Means: "The device is told no, and stops asking.", Destroy: true, do: decide(now, certv1.CertificateDenied)},
	}
	for _, a := range all {
		a.kind, a.one, a.verb, a.resource = state.JoinRequests, "request", "patch", "certificatesigningrequests/approval"
		a.list, a.listed = waitingPath, "Devices that wait"
		a.idle = func(o state.Object) string {
			return yes(state.DecisionOn(o.(*joinRequest)) != state.RequestPending, "is decided on already")
		}
	}
	return all
}

func decide(now func() time.Time, t certv1.RequestConditionType) func(context.Context, *worker, state.Object) (undo, error) {
	return func(ctx context.Context, w *worker, o state.Object) (undo, error) {
		at := now().UTC().Truncate(time.Second)
		return nil, w.send(ctx, apiCall{method: http.MethodPatch, path: objectURL(state.JoinRequests, "", o.GetName()) + "/approval", media: mergePatch}, tree{
			"metadata": tree{"uid": o.GetUID(), "resourceVersion": o.GetResourceVersion()}, // what was looked at, and nothing else
			"status":   tree{"conditions": []tree{{"type": t, "status": "True", "reason": "AdminPage", "message": "This was decided on the hub's page.", "lastUpdateTime": at}}},
		})
	}
}

// pendingRequests are those that nobody has decided on, the oldest first.
func pendingRequests(s state.Snapshot) (list []*joinRequest) {
	for r := range state.Each[*joinRequest](s, state.JoinRequests, "") {
		if state.DecisionOn(r) == state.RequestPending {
			list = append(list, r)
		}
	}
	slices.SortStableFunc(list, func(x, y *joinRequest) int { return x.CreationTimestamp.Compare(y.CreationTimestamp.Time) })
	return list
}

// decidedRequests are those that somebody has decided on, the last one first.
func decidedRequests(s state.Snapshot) (list []*joinRequest) {
	for r := range state.Each[*joinRequest](s, state.JoinRequests, "") {
		if state.DecisionOn(r) != state.RequestPending {
			list = append(list, r)
		}
	}
	sort.SliceStable(list, func(i, j int) bool { return decidedAt(list[i]).After(decidedAt(list[j])) })
	return list
}

// decidedAt is when somebody decided on a request, or when it came if its conditions do not say.
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
	Age, Ends            *moment
	Pill                 pill
	Menu                 menu
}

type waitingData struct {
	Did     *done
	Rows    []waitingRow
	Decided []waitingRow
	More    int // that wait, beside those that are shown
	Bulk    menu
}

// waiting lists the devices that wait until an administrator approves of them.
func waiting(a *request) (page, error) {
	d := waitingData{Did: justDone(a)}
	pending := pendingRequests(a.Snapshot)
	d.More = max(0, len(pending)-perPage)
	for _, r := range pending[:len(pending)-d.More] {
		d.Rows = append(d.Rows, waitingRowOf(a, r))
	}
	decided := decidedRequests(a.Snapshot)
	for _, r := range decided[:min(len(decided), perPage)] {
		d.Decided = append(d.Decided, waitingRowOf(a, r))
	}
	if len(pending) > 1 {
		d.Bulk = bulk(a, state.JoinRequests, len(pending), nil)
	}
	return page{Template: "waiting", Title: "Devices that wait", Watch: []string{"requests"}, Data: d}, nil
}

func waitingRowOf(a *request, r *joinRequest) waitingRow {
	said := r.Annotations
	row := waitingRow{
		Name: r.Name, Node: said[state.RequestNode], Site: said[state.RequestSite], Source: said[state.RequestSource],
		Machine: cmp.Or(said[state.RequestMachine], "unknown"), Serial: cmp.Or(said[state.RequestSerial], "unknown"), Token: r.Spec.Username,
		Age: at(r.CreationTimestamp.Time, a.now), Ends: at(state.RequestEnds(a.Snapshot, r), a.now), Menu: menuOf(a, r), Pill: requestPill(r),
	}
	if a.Node(row.Node) != nil {
		row.NodeHref = nodeHref(row.Node)
	}
	return row
}

func requestPill(r *joinRequest) pill {
	switch state.DecisionOn(r) {
	case state.RequestApproved:
		return pill{"ok", "Approved"}
	case state.RequestIssued:
		return pill{"ok", "Has joined"}
	case state.RequestDenied:
		return pill{"idle", "Denied"}
	}
	return pill{"warn", "Waits"}
}

// waitingCount is how many devices wait, for those who may see it.
func waitingCount(a *request) int {
	if !a.may("list", "certificatesigningrequests") {
		return 0
	}
	return len(pendingRequests(a.Snapshot))
}
