package commands

// Closest returns the most similar name, or "" if all differ by more than a few letters.
func Closest(name string, names []string) string {
	best, least := "", max(2, len(name)/5)+1
	for _, n := range names {
		if d := distance(name, n); d < least {
			best, least = n, d
		}
	}
	return best
}

// distance is the Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := diagonal
			if a[i-1] != b[j-1] {
				change++
			}
			diagonal = row[j]
			row[j] = min(row[j]+1, row[j-1]+1, change)
		}
	}
	return row[len(b)]
}
