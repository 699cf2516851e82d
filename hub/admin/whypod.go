package admin

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/kube/table"
	"flotilla.dev/hub/state"
)

// A podLine is a pod in kubectl's words.
type podLine struct{ Ready, Status, Restarts string }

func podLineOf(p *corev1.Pod, now time.Time) podLine {
	row := table.For(state.Pods, []state.Object{p}, table.Options{Include: metav1.IncludeNone, NoHeaders: true, Now: now}).Rows[0].Cells
	return podLine{fmt.Sprint(row[1]), fmt.Sprint(row[2]), fmt.Sprint(row[3])}
}
