// SPDX-License-Identifier: Apache-2.0
//
// The switch from one stack to another, one file for each architecture.
#pragma once

extern "C" {

// Continues `to`, which a switch or make_fibre left, and leaves in *from what continues the caller.
void kvferry_switch_fibre(void** from, void* to);

// What kvferry_switch_fibre needs to start `entry` on the stack that ends at `top`. `entry` does not return.
void* kvferry_make_fibre(void* top, void (*entry)());
}
