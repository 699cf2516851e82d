package state

import appsv1 "k8s.io/api/apps/v1"

// PodUnreachable is a condition of a StatefulSet, and of a Deployment that recreates, that is ours: a pod of
// it is on a device that does not answer, and no other is made in its place.
const PodUnreachable appsv1.StatefulSetConditionType = "PodUnreachable"

// RolloutBlocked is a condition of a StatefulSet that is ours: its newest revision waits for a pod of an older one
// that does not become ready.
const RolloutBlocked appsv1.StatefulSetConditionType = "RolloutBlocked"
