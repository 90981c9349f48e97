// Says whether a recorded history of registers is linearizable: every operation took effect at one moment between its call and its answer.
//
// A line of the file is {"key", "client", "kind": "read" | "write" | "cas", "value", "expected", "call", "return", "found", "done"}: times in
// nanoseconds of one clock; return 0: nobody knows whether it happened (it may have, at any time afterwards). Prints one line and ends with 0 when
// all registers are, 1 when one is not, 2 when that could not be told in time.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Key      string `json:"key"`
	Client   int    `json:"client"`
	Kind     string `json:"kind"`
	Value    int    `json:"value"`    // written
	Expected int    `json:"expected"` // by cas
	Call     int64  `json:"call"`
	Return   int64  `json:"return"`
	Found    int    `json:"found"` // by read; 0: nothing there
	Done     bool   `json:"done"`  // by cas: the value was the expected one
}

// The register: 0 until it is written.
var register = porcupine.Model{
	Init: func() interface{} { return 0 },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		op, now := input.(operation), state.(int)
		switch op.Kind {
		case "read":
			return op.Found == now, now
		case "write":
			return true, op.Value
		default:
			if op.Return != 0 && op.Done != (now == op.Expected) {
				return false, now
			}
			if now == op.Expected {
				return true, op.Value
			}
			return true, now
		}
	},
	DescribeOperation: func(input, output interface{}) string {
		return fmt.Sprintf("%+v", input)
	},
}

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	histories, total, open := map[string][]porcupine.Operation{}, 0, 0
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var op operation
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			fmt.Println(err)
			os.Exit(2)
		}
		end := op.Return
		if end == 0 {
			end = math.MaxInt64
			open++
		}
		total++
		histories[op.Key] = append(histories[op.Key], porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Output: op, Return: end})
	}
	keys := []string{}
	for key := range histories {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	status := 0
	for _, key := range keys {
		result, info := porcupine.CheckOperationsVerbose(register, histories[key], time.Minute)
		if result == porcupine.Ok {
			continue
		}
		fmt.Printf("register %s, %d operations: %s\n", key, len(histories[key]), result)
		if result == porcupine.Illegal {
			status = 1
			if len(os.Args) > 2 {
				picture, err := os.Create(os.Args[2])
				if err == nil {
					_ = porcupine.Visualize(register, info, picture)
					picture.Close()
				}
			}
		} else if status == 0 {
			status = 2
		}
	}
	fmt.Printf("%d operations on %d registers, %d of them without an answer\n", total, len(keys), open)
	os.Exit(status)
}
