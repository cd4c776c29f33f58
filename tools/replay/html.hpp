// SPDX-License-Identifier: Apache-2.0
//
// The report as a page: charts and tables, made from the JSON report alone and with it inside, in a
// <script type="application/json" id="report">. Runs no script and refers to nothing outside itself.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace kvferry::replay {

std::string to_html(const nlohmann::json& report);

}  // namespace kvferry::replay
