package state

import appsv1 "k8s.io/api/apps/v1"

// PodUnreachable is a condition of a StatefulSet that is ours: a pod of it is on a device
// that does not answer, and no other is made in its place.
const PodUnreachable appsv1.StatefulSetConditionType = "PodUnreachable"
