package main

// A row is a fault, the criterion during and after the fault, and its tests.
type row struct {
	id, fault, criterion string
	tests                []test
	// gap is the part of the criterion that no test checks, with the reason.
	gap string
}

// A test is one test of a package.
type test struct{ pkg, name string }

func (t test) String() string { return t.pkg + " " + t.name }

// of returns these tests of one package.
func of(pkg string, names ...string) []test {
	out := make([]test, len(names))
	for i, name := range names {
		out[i] = test{pkg, name}
	}
	return out
}

// all joins tests of several packages.
func all(pkgs ...[]test) (out []test) {
	for _, r := range pkgs {
		out = append(out, r...)
	}
	return out
}

var rows = []row{
	{id: "F1", fault: "kill -9 of the hub under writes, 200 times",
		criterion: "nothing acknowledged is lost, the database is sound, a start takes at most 3 s, no node " +
			"becomes NotReady",
		tests: all(
			of("hub/e2e", "TestKillingTheHubLosesNothing"),
			of("hub/store", "TestKill9LosesNoAcknowledgedCommit", "TestACommitIsAllOrNothing"))},
	{id: "F1b", fault: "the leader of two hubs on PostgreSQL: kill -9 under writes, 100 times; frozen for a " +
		"minute; stopped normally",
		criterion: "the other hub leads after at most 10 s, or 2 s after a normal stop; nothing acknowledged " +
			"is lost; the frozen hub writes nothing; no eviction, no restart of a container",
		tests: all(
			of("hub/e2e", "TestAStandbyTakesOverFromAKilledLeader"),
			of("hub/store", "TestADeposedLeaderWritesNothing", "TestALeaderFrozenInATransactionDelaysNoTakeover"),
			of("hub/leader", "TestAnyInterleavingHasOneLeaderAtATime"))},
	{id: "F1c", fault: "the PostgreSQL server: kill -9 under writes, ended connections, silence, no writes, " +
		"a line cut in a COMMIT, a standby that takes over",
		criterion: "nothing acknowledged is lost or done twice, whatever the role's synchronous_commit; callers " +
			"get a response within seconds; a standby without the newest writes is detected, and devices receive " +
			"nothing before resume",
		tests: of("hub/store", "TestKill9OfTheServerLosesNoAcknowledgedCommit", "TestEndedConnectionsAreReopened",
			"TestASilentServerTimesOut", "TestAReadOnlyServerIsRetried",
			"TestAnInterruptedCommitIsAppliedOnce", "TestAnUnresolvedCommitWaitsForItsResult",
			"TestCommitsAreDurableDespiteTheServersDefaults", "TestATransactionPoolerIsRefused",
			"TestTheHubUsesAStandbyServerThatTookOver", "TestAStandbyServerThatLacksCommitsIsDetected")},
	{id: "F1d", fault: "a full disk under PostgreSQL's data and log",
		criterion: "the server ends; the hub serves reads, names the cause, loses nothing acknowledged, " +
			"and writes again once there is space",
		tests: all(
			of("hub/e2e", "TestPostgresWithoutSpaceForItsLog"),
			of("hub/store", "TestAFullDiskOfTheServerRefusesOnlyNewObjects"))},
	{id: "F2", fault: "a power cut of the hub",
		criterion: "the database opens, is sound and has everything acknowledged",
		tests: all(
			of("hub/e2e", "TestAPowerCutOfTheHub"),
			of("hub/pki", "TestAPowerCutDuringAChange"))},
	{id: "F3", fault: "kill -9 of the agent at every step, and 60 times at random while its desired state " +
		"changes",
		criterion: "no container twice or left over, no workload restarted; the desired state runs",
		tests: all(
			of("hub/e2e", "TestKillingTheAgentAtRandomMoments"),
			of("device/agent", "TestAnAgentKilledAtAnyStepConverges", "TestRealKilledAgent"),
			of("device/volume", "TestAKilledAgentLeavesNoIncompleteCopy"),
			of("device/memory", "TestAnAgentKilledAtAnyFileOperationLosesNoStoredContent"))},
	{id: "F4", fault: "a reboot of a device while the hub is away",
		criterion: "the desired state runs within 60 s, from the device's disk",
		tests: all(
			of("hub/e2e", "TestRestarts"),
			of("hub/sim", "TestFleetADeviceThatBootsWithoutAHubRunsItsPods"),
			of("device/agent", "TestAfterARebootWithoutTheHubAllPodsRunAgain"))},
	{id: "F5", fault: "an engine that hangs, or is gone",
		criterion: "the node is NotReady within 40 s with the reason; its lease goes on, nothing is deleted, and " +
			"it recovers",
		tests: all(
			of("hub/e2e", "TestAnEngineThatHangs"),
			of("device/agent", "TestAStoppedEngineMakesTheNodeNotReadyAfter30Seconds",
				"TestAnEngineThatHangsMakesTheNodeNotReadyAfter40Seconds", "TestAnUnavailableEngineChangesNoNetwork"))},
	{id: "F6", fault: "a network split between device and hub, reset or silent",
		criterion: "the node becomes Unknown only by its lease; workloads go on; afterwards nothing restarts, " +
			"and events come once and in order",
		tests: all(
			of("hub/e2e", "TestAPartition", "TestASilentDevice"),
			of("hub/sim", "TestFleetAReturningDeviceFirstStopsItsEvictedPod",
				"TestFleetAnySingleMessageMayBeLostDoubledOrLate"),
			of("device/link", "TestAHalfOpenLinkIsNoticedWithinTwentySeconds",
				"TestEventsWaitForTheHubInOrderAndOverflowIsReported"))},
	{id: "F7", fault: "a network that carries one direction only",
		criterion: "the device closes the link within 20 s: a node that receives nothing does not look healthy",
		tests: all(
			of("hub/e2e", "TestAOneWayLine"),
			of("device/link", "TestAHubThatAcknowledgesNothingIsLeft"))},
	{id: "F7b", fault: "a line of 20 kbit/s, with 40 kB and more either way",
		criterion: "everything arrives over one link; the node stays Ready",
		tests: all(
			of("hub/e2e", "TestALineOfTwentyKilobits"),
			of("hub/sim", "TestALineOf20KilobitsCarriesBothDirections"),
			of("hub/broker", "TestASlowPacketKeepsTheSessionAlive", "TestAReaderOfAHundredBytesASecondIsDisconnected",
				"TestADeadConnectionIsClosedInTime"))},
	{id: "F7c", fault: "a network that drops large packets, as a tunnel or a mobile line may",
		criterion: "devices, browsers and kubectl connect: packets carry at most 1,024 bytes",
		tests: all(
			of("hub/e2e", "TestALineThatLosesLargePackets"),
			of("shared/line", "TestPacketsAreSmallInBothDirections"),
			of("device/link", "TestABrokerIsAskedForSmallPackets"))},
	{id: "F8", fault: "a link that flaps",
		criterion: "no eviction, no restart; Ready does not follow every change; logs stay short",
		tests: all(
			of("hub/e2e", "TestAFlappingLine"),
			of("hub/sim", "TestFleetAFlappingLinkEvictsNoPod"),
			of("hub/lifecycle", "TestANodeFlapsAfterManyChangesOfReady"))},
	{id: "F8b", fault: "a bad night of a thousand nodes: dark sites, flapping links, crashing containers, " +
		"unauthenticated clients",
		criterion: "eight hours of the hub's log have at most 10 MB; an agent's is short",
		tests:     of("hub/sim", "TestFleetTheLogOfABadNightIsShort", "TestFleetTheLogOfAnAgentWithoutAHubIsShort")},
	{id: "F9", fault: "one dark site; all sites dark; a paused hub",
		criterion: "a dark site loses its pods at its rate; otherwise nothing is evicted",
		tests: all(
			of("hub/e2e", "TestAPausedHub"),
			of("hub/sim", "TestFleetACutSiteLosesItsPodsAtItsRateAndKeepsThemWithHold",
				"TestFleetWhenEverySiteIsDarkNoPodIsEvicted", "TestFleetALargeSiteThatIsPartlyDarkLosesItsNodesSlowly"),
			of("hub/control", "TestStories", "TestAfterAStallEveryNodeHasItsFullGrace"),
			of("hub/lifecycle", "TestScenarioStateOfSites"))},
	{id: "F10", fault: "a thousand devices that reconnect at once after a kill of the hub",
		criterion: "all have their lease within 60 s, none is Unknown, the hub needs less than 128 MiB",
		tests: all(
			of("hub/e2e", "TestAThousandDevicesReturn"),
			of("hub/sim", "TestFleetAnOutageOfTheHubMakesNoNodeUnknown"),
			of("hub/broker", "TestASiteBehindOneAddressIsBackWithinTwoLeaseIntervals"))},
	{id: "F11", fault: "a device that reads slowly, or not at all, or asks for no keep-alive",
		criterion: "no other device waits; slow readers receive everything, others are disconnected",
		tests: of("hub/broker", "TestADeviceThatStopsReadingIsDisconnected",
			"TestASlowReaderGetsAllDataAndCanSend",
			"TestSilenceIsDetectedWithAnyKeepAlive", "TestAnUnfinishedConnectEndsAfterTenSeconds")},
	{id: "F12", fault: "a full disk of the hub",
		criterion: "it serves reads and leases, answers writes with 507 and the reason; deleting frees " +
			"space; nothing is corrupt",
		tests: all(
			of("hub/e2e", "TestAFullDiskOfTheHub"),
			of("hub/store", "TestAFullDiskRefusesOnlyNewObjects", "TestRecordsLostOnAFullDiskAreReportedLater"),
			of("hub/sim", "TestFleetAFailingDiskMakesNoNodeUnknown", "TestFleetUsersCanFreeSpaceOnAFullDisk",
				"TestFleetAHubStartsOnAFullDisk", "TestFleetAHubWithAFullDiskKeepsHeartbeats"),
			of("hub/serve", "TestAFullDiskIsReportedToTheClient"))},
	{id: "F12b", fault: "a failing or read-only disk of the hub; a database moved or removed while it runs",
		criterion: "it serves reads and leases, answers writes with 503, and logs the next step; it " +
			"recovers, and nothing acknowledged is lost",
		tests: all(
			of("hub/e2e", "TestAFailingDiskOfTheHub"),
			of("hub/store", "TestAMovedDatabaseRefusesWritesUntilItIsBack",
				"TestARemovedDatabaseIsRestoredAtTheNextStart", "TestTheLogOfAMissingDatabaseIsKept"))},
	{id: "F13", fault: "a full or read-only disk of a device",
		criterion: "the node reports it, and keeps its lease and its pods; images in use are never deleted",
		tests: all(
			of("hub/e2e", "TestAFullDiskOfTheDevice"),
			of("device/agent", "TestPodsSurviveAnUnwritableDisk", "TestUnderDiskPressureUnneededImagesAreRemovedFirst"),
			of("device/image", "TestIsPulled"),
			of("device/memory", "TestAFullDiskStoresTheNextDesiredState"),
			of("device/hardware", "TestHealth", "TestErrorsOfADiskAreCountedOnItsPartitions"))},
	{id: "F14", fault: "torn, flipped, truncated or missing files of the hub; files of a newer or older " +
		"version",
		criterion: "it starts from a backup and logs that, or refuses and names the file; a newer database is " +
			"refused, an older one migrated",
		tests: all(
			of("hub/e2e", "TestTornFilesOfTheHub", "TestTheHubRefusesToStart"),
			of("hub/store", "TestADamagedDatabaseIsReplacedByItsBackup", "TestADamagedBackupIsSkippedForAnOlderOne",
				"TestADamagedAuditStopsNoCommit", "TestReadingDuringTheCheckReturnsTheOpenedDatabase",
				"TestDatabasesOfOlderVersionsOpen", "TestAMigrationKeepsTheOldDatabaseAndChangesEveryKind",
				"TestAnOlderDatabaseIsReported", "TestAnOlderDatabaseWithTheSameObjectsIsReported"),
			of("hub/history", "TestATornFileKeepsEarlierSamples"),
			of("hub/serve", "TestARestoredDatabaseCausesNoPanic"))},
	{id: "F15", fault: "clocks that jump an hour, begin in 1970, or pass 2038",
		criterion: "no lease, certificate or workload is affected; ClockSynced reports it",
		tests: all(
			of("hub/e2e", "TestWrongClocks"),
			of("hub/sim", "TestFleetTheClockOfADeviceDecidesNothing", "TestFleetTheHubsClockMayStartInThePast"),
			of("hub/control", "TestSettingTheClockMovesNoDeadline"),
			of("hub/pki", "TestCertificatesAreValidByBothClocks"),
			of("hub/store", "TestBackupsOfAHubWhoseClockStartsInThePast", "TestRecordsOfAHubWhoseClockIsBehindAreKept"),
			of("device/plan", "TestMonotonicStart", "TestBackOffIgnoresTheEnginesClock"),
			of("device/agent", "TestADeadlineUsesTheMonotonicClock"),
			of("device/hardware", "TestHealth"))},
	{id: "F16", fault: "two devices with one identity",
		criterion: "the first stays connected, the second is refused and reported; both recover without a restart",
		tests: all(
			of("hub/sim", "TestFleetTheFirstOfTwoDevicesWithOneNameStays", "TestFleetACloneIsRefusedAndReported",
				"TestFleetAReplacedDeviceIsRefused"),
			of("hub/broker", "TestAConnectedDeviceKeepsItsNode", "TestANodeHasOneSession"),
			of("hub/node", "TestTwoAgentsWithOneIdentityAreAConflictForAWhile", "TestWhichDeviceMayTakeANodeOver"))},
	{id: "F17", fault: "empty, torn, flipped or missing files of the agent",
		criterion: "the agent starts and recovers, or names the file and the next step; workloads go on",
		tests: all(
			of("hub/e2e", "TestTornFilesOfTheDevice", "TestAfterDamage", "TestADamagedIdentity"),
			of("device/agent", "TestPodsSurviveADamagedFile", "TestWithoutADesiredStateEndedContainersAreStarted",
				"TestAPodWithAFinalPhaseOnTheHubDoesNotRunAgain"),
			of("device/memory", "TestOneDamagedCopyLosesNoDesiredState", "TestAnInterruptedWriteKeepsThePreviousText",
				"TestDamagedFilesAreReported"))},
	{id: "F18", fault: "an agent killed without memory; a paused agent",
		criterion: "64 MiB are enough; workloads go on, and the paused agent continues",
		tests:     of("hub/e2e", "TestAnAgentWithoutMemory", "TestAPausedAgent")},
	{id: "F19", fault: "hub and agents of other versions",
		criterion: "each works with the other and is upgraded in place; no container restarts; unknown fields " +
			"are ignored, older data is migrated, an older hub refuses a newer database",
		tests: all(
			of("hub/e2e", "TestAnUpgradeFromAnOlderSchema", "TestAgentsOfOtherVersions", "TestAHubUpgradeUnderLoad"),
			of("shared/wire", "TestPayloadsMatchTheGoldenFiles"),
			of("device/memory", "TestAnOlderAgentsDesiredStateIsRead"),
			of("device/agent", "TestAnAgentAdoptsTheContainersOfOlderVersions"),
			of("device/plan", "TestAContainerOfAnEarlierAgentIsNotRestarted"),
			of("hub/store", "TestDatabasesOfOlderVersionsOpen", "TestABackupOfEachSchemaIsRestored"),
			of("hub/serve", "TestEnrolmentsOfAnEarlierVersionAreTakenOverOnce"))},
	{id: "F20", fault: "a boot configuration that breaks a board",
		criterion: "it falls back without help, also after a power cut at any step; the rollout stops",
		tests: all(
			of("device/boothelper", "TestATrialEndsKeptOrRolledBack", "TestWhereverThePowerFails",
				"TestWhereverThePowerFailsTwice", "TestAnAgentThatNeverRunsIsRolledBackByTheDeadman",
				"TestEachCheckThatFailsRollsBack"),
			of("hub/control", "TestStories"))},
	{id: "F21", fault: "an unreachable registry; an image that is missing, damaged or of another " +
		"architecture",
		criterion: "the pod has the reason (ImagePullBackOff, ErrImagePull …); running pods go on",
		tests: of("device/agent", "TestImagesThatCannotBePulled", "TestAPresentImageIsUsedWhenTheRegistryFails",
			"TestAnInvalidImageNameIsNotSentToTheEngine", "TestAnImageVolumeWithoutItsImage")},
	{id: "F22", fault: "a restore of the hub from an older backup",
		criterion: "devices receive nothing before an administrator runs resume; workloads go on",
		tests: all(
			of("hub/e2e", "TestAnOldBackup", "TestARestoreWithAHubOnStandby"),
			of("hub/sim", "TestFleetARestoredHubChangesNothingBeforeResume"),
			of("hub/store", "TestRestoreKeepsTheReplacedDatabase", "TestARestoreReturnsNoRemovedRights",
				"TestARestoreReturnsNoRevokedAuthority", "TestAStandbyFollowsWritesOutsideTheChangeLog",
				"TestARestoreKeepsDevicesEnrolledLater", "TestRestoreRefusesOtherFilesAndChangesNothing"))},
	{id: "F23", fault: "a day, with five hundred devices for a while",
		criterion: "goroutines, open files and memory do not grow; in the end the devices run the desired state",
		tests: all(
			of("hub/e2e", "TestASoak"),
			of("hub/sim", "TestFleetADay"))},
	{id: "F24", fault: "wear of SD cards: a hundred idle nodes",
		criterion: "in an hour the hub writes less than 20 MB and syncs less than 240 times, an agent writes " +
			"less than 1 MB",
		tests: all(
			of("hub/e2e", "TestWear"),
			of("hub/sim", "TestFleetLeasesCauseNoCommitAndNoPass", "TestFleetAnIdleDeviceCostsFewBytes"))},
}
