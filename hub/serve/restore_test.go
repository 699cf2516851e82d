package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/snapshot"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// hostile are objects that no hub writes, by what is wrong with them. The test replaces NAME and
// UID.
var hostile = map[string][]string{
	"an empty object": {`{"metadata":{"name":"NAME","namespace":"NS","uid":"UID"}}`},
	"empty parts":     {`{"metadata":{"name":"NAME","namespace":"NS","uid":"UID"},"spec":{},"status":{}}`},
	"owns itself":     {`{"metadata":{"name":"NAME","namespace":"NS","uid":"UID","ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"NAME","uid":"UID","controller":true}]},"spec":{"replicas":2,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}}}}}`},
	"huge values":     {`{"metadata":{"name":"NAME","namespace":"NS","uid":"UID","generation":9223372036854775807},"spec":{"replicas":2147483647,"minReadySeconds":2147483647,"revisionHistoryLimit":2147483647,"progressDeadlineSeconds":2147483647,"selector":{"matchLabels":{"a":"b"}},"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"999999999%","maxUnavailable":2147483647}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"c"}]}}},"status":{"replicas":2147483647,"collisionCount":2147483647,"observedGeneration":9223372036854775807}}`},
	"negative values": {`{"metadata":{"name":"NAME","namespace":"NS","uid":"UID","generation":-9223372036854775808,"deletionTimestamp":"0001-01-01T00:00:00Z","deletionGracePeriodSeconds":-9223372036854775808},"spec":{"nodeName":"nodes-1","replicas":-2147483648,"minReadySeconds":-2147483648,"priority":-2147483648,"terminationGracePeriodSeconds":-9223372036854775808,"activeDeadlineSeconds":-9223372036854775808,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}}},"tolerations":[{"operator":"Exists","tolerationSeconds":-9223372036854775808}]},"status":{"replicas":-2147483648,"phase":"Running"}}`},
	"selects wrongly": {`{"metadata":{"name":"NAME","namespace":"NS","uid":"UID"},"spec":{"selector":{"matchExpressions":[{"key":"!","operator":"Never","values":["\u0000"]}]},"minAvailable":"x%","affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"","operator":"Gt","values":[]}]},{"matchFields":[{"key":"x","operator":"In"}]}]}},"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":""},{"labelSelector":{"matchExpressions":[{"key":"a","operator":"In"}]},"topologyKey":"x"}]}},"topologySpreadConstraints":[{"maxSkew":0,"topologyKey":"","whenUnsatisfiable":"x"}]}}`},
	"works wrongly": {
		`{"metadata":{"name":"NAME","namespace":"NS","uid":"UID"},"spec":{"parallelism":2147483647,"completions":2147483647,"completionMode":"Indexed","backoffLimit":-1,"backoffLimitPerIndex":-1,"maxFailedIndexes":-1,"activeDeadlineSeconds":9223372036854775807,"ttlSecondsAfterFinished":-1,"selector":{"matchLabels":{"a":"b"}},"successPolicy":{"rules":[{"succeededIndexes":"0-2147483646,5,x"}]},"podFailurePolicy":{"rules":[{},{"onExitCodes":{}}]},"template":{"metadata":{"labels":{"a":"b"}}},"schedule":"* * * * *","timeZone":"../..","startingDeadlineSeconds":-9223372036854775808,"successfulJobsHistoryLimit":-5,"jobTemplate":{"spec":{"parallelism":-1}}},"status":{"startTime":"9999-12-31T23:59:59Z","completedIndexes":"0-2147483646","failedIndexes":"9-1","succeeded":-1,"lastScheduleTime":"0001-01-01T00:00:00Z","conditions":[{"type":"SuccessCriteriaMet","status":"False"}]}}`,
		`{"metadata":{"name":"NAME","namespace":"NS","uid":"UID"},"spec":{"parallelism":-7,"completions":-7,"schedule":"* * * * *","failedJobsHistoryLimit":-5,"concurrencyPolicy":"Forbid","selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}}},"jobTemplate":{"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"spec":{"containers":[{"name":"c","image":"c"}]}}}}}}`,
	},
	"impossible times":              {`{"metadata":{"name":"NAME","namespace":"NS","uid":"UID","creationTimestamp":"9999-12-31T23:59:59Z"},"spec":{"nodeName":"nodes-1","taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoExecute","timeAdded":"0001-01-01T00:00:00Z"},{"key":"node.kubernetes.io/unreachable","effect":"NoExecute","timeAdded":"9999-12-31T23:59:59Z"}],"tolerations":[{"key":"node.kubernetes.io/unreachable","effect":"NoExecute","tolerationSeconds":9223372036854775807}]},"status":{"startTime":"9999-12-31T23:59:59Z","conditions":[{"type":"Ready","status":"Unknown","lastTransitionTime":"9999-12-31T23:59:59Z"},{"type":"Ready","status":"True","lastHeartbeatTime":"0001-01-01T00:00:00Z"},{"type":"","status":""}]}}`},
	"invalid addresses":             {`{"metadata":{"name":"NAME","namespace":"NS","uid":"UID"},"spec":{"podCIDR":"999.0.0.0/99","podCIDRs":["::/0","0.0.0.0/0","x"],"hostNetwork":true,"containers":[{"name":"c","ports":[{"hostPort":-1},{"hostPort":70000}]}]},"status":{"podIP":"x","addresses":[{"type":"InternalIP","address":"\u0000"}]}}`},
	"names with special characters": {`{"metadata":{"name":"NAME","namespace":"NS","uid":"UID","labels":{"topology.kubernetes.io/zone":"../../x\u0000\u202e","":""},"annotations":{"\u0000":"\u0000"},"finalizers":["","\u0000"]},"spec":{"nodeName":"\u0000","providerID":"\u0000"}}`},
	"too many":                      {`{"metadata":{"name":"NAME","namespace":"NS","uid":"UID"},"spec":{"taints":[` + strings.TrimSuffix(strings.Repeat(`{"key":"k","effect":"NoExecute"},`, 5000), ",") + `],"containers":[` + strings.TrimSuffix(strings.Repeat(`{"name":"c"},`, 5000), ",") + `]},"status":{"conditions":[` + strings.TrimSuffix(strings.Repeat(`{"type":"Ready"},`, 5000), ",") + `]}}`},
}

// Any content of a restored database harms neither the start nor the first hour.
func TestARestoredDatabaseCausesNoPanic(t *testing.T) {
	for what, objects := range hostile {
		t.Run(what, func(t *testing.T) {
			dir, before := t.TempDir(), panics.Counts()
			synctest.Test(t, func(t *testing.T) {
				log := slog.New(slog.DiscardHandler)
				st, err := store.Open(t.Context(), store.Options{Dir: dir, Log: log})
				if err != nil {
					t.Fatal(err)
				}
				defer st.Close()
				var rows []store.Row
				for _, kind := range state.Kinds() {
					for i, o := range objects {
						name, ns := fmt.Sprintf("%s-%d", kind, i+1), ""
						if kind.Namespaced() {
							ns = "default"
						}
						text := strings.NewReplacer("NAME", name, "NS", ns, "UID", "u-"+name).Replace(o)
						into, err := state.New(kind)
						if err != nil {
							t.Fatal(err)
						}
						if json.Unmarshal([]byte(text), into) != nil {
							continue // cannot be decoded as the kind
						}
						rows = append(rows, store.Row{Kind: string(kind), Namespace: ns, Name: name, UID: "u-" + name,
							Rev: uint64(len(rows) + 1), Object: []byte(text)})
					}
				}
				if err := st.Commit(t.Context(), store.Commit{Rev: uint64(len(rows)), Rows: rows}); err != nil {
					t.Fatal(err)
				}
				start, mended, err := snapshot.Load(t.Context(), st, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				loop := newLoop(config.Default(), notBefore(start, time.Time{}), memory{st}, nil, log)
				ctx, cancel := context.WithCancel(t.Context())
				over := make(chan error, 1)
				go func() { over <- loop.Run(ctx) }()
				if _, err := loop.Do(ctx, fillDefaults(log)); err != nil {
					t.Error(err)
				}
				if _, err := loop.Do(ctx, storeRepairs(mended)); err != nil {
					t.Error(err)
				}
				for range 60 {
					time.Sleep(time.Minute)
					if _, err := loop.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) {
						return nil,
							nil
					}); err != nil {
						t.Error(err)
					}
				}
				if n := loop.Unsettled(); n > 0 {
					t.Errorf("%d cycles did not settle", n)
				}
				s := loop.Snapshot()
				if n := s.Len(state.Pods); n > 5000 {
					t.Errorf("%d pods", n)
				}
				cancel()
				<-over
			})
			if now := panics.Counts(); !maps.Equal(now, before) {
				t.Errorf("there were panics: %v, before the start %v", now, before)
			}
		})
	}
}
